// The steps of attention of every instruction set that this processor has, without ggml, against doubles.  Also run for ARM.
#include "kernels/attention_kernels.h"
#include "kernels/isa.h"
#include "test.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using namespace dspark::kernels;

namespace {

size_t size_of_halves(ggml_type, int64_t n) { return (size_t) n * 2; }

double half(uint16_t bits) { return std::ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25) * (bits >> 15 ? -1 : 1); }

constexpr int64_t n_k = 20, n_rows = 7, n_keys = 30;

void check(const attention_kernels & a) {
    std::mt19937          random(3);
    const int64_t         width = (n_k + a.lanes - 1) / a.lanes * a.lanes, stride = 2 * block_keys;
    std::vector<uint16_t> cache((size_t) (n_keys * n_k));
    for (uint16_t & h : cache) {
        h = (uint16_t) (0x3800 | (random() & 0x83ff)); // normal numbers between 1/2 and 1
    }
    std::vector<float> k((size_t) (block_keys * width), NAN), q((size_t) (n_rows * width)), s((size_t) (n_rows * stride), NAN);
    a.read(GGML_TYPE_F16, reinterpret_cast<const char *>(cache.data()), n_k * 2, n_keys, n_k, width, k.data());
    for (int64_t j = 0; j < block_keys; ++j) {
        for (int64_t i = 0; i < width; ++i) {
            const bool within = j < n_keys && i < n_k;
            ASSERT((double) k[(size_t) (j * width + i)] == (within ? half(cache[(size_t) (j * n_k + i)]) : 0.0));
        }
    }

    // the same as read where they lie
    std::vector<uint16_t> whole((size_t) (block_keys * width));
    for (int64_t j = 0; j < n_keys; ++j) {
        std::copy_n(&cache[(size_t) (j * n_k)], n_k, &whole[(size_t) (j * width)]);
    }
    const rows floats{GGML_TYPE_F32, reinterpret_cast<const char *>(k.data()), (size_t) width * 4};
    const rows halves{GGML_TYPE_F16, reinterpret_cast<const char *>(whole.data()), (size_t) width * 2};

    std::vector<const float *> queries;
    for (int64_t r = 0; r < n_rows; ++r) {
        for (int64_t i = 0; i < n_k; ++i) {
            q[(size_t) (r * width + i)] = (float) ((int) (random() % 2001) - 1000) / 512;
        }
        queries.push_back(&q[(size_t) (r * width)]);
    }
    uint16_t mask[block_keys] = {};
    mask[3] = mask[30] = mask[31] = 0xfc00; // -inf
    mask[4]                       = 0xbc00; // -1
    for (float softcap : {0.0f, 2.0f}) {
        std::vector<float> direct(s.size(), NAN);
        a.scores(queries.data(), (int) n_rows, halves, width, direct.data(), stride);
        a.scores(queries.data(), (int) n_rows, floats, width, s.data(), stride);
        for (int64_t i = 0; i < n_rows * block_keys; ++i) {
            const auto at = (size_t) (i / block_keys * stride + i % block_keys);
            ASSERT(s[at] == direct[at]);
        }
        std::vector<float> alone((size_t) stride), p((size_t) (n_rows * block_keys)), sums((size_t) (n_rows * width));
        a.scores(&queries[5], 1, floats, width, alone.data(), stride);
        for (int64_t r = 0; r < n_rows; ++r) {
            float * row = &s[(size_t) (r * stride)];
            ASSERT(r != 5 || std::equal(row, row + block_keys, alone.begin()));
            a.finish(row, mask, 0.5f, softcap, 0.25f);
            const int32_t blocks[] = {0};
            const float   max      = a.largest(row, blocks, 1);
            const double  total    = a.weights(row, max, &p[(size_t) (r * block_keys)]);
            double        top = -INFINITY, sum = 0;
            for (int64_t j = 0; j < block_keys; ++j) {
                double wanted = 0;
                for (int64_t i = 0; i < n_k; ++i) {
                    wanted += 0.5 * (double) k[(size_t) (j * width + i)] * (double) q[(size_t) (r * width + i)];
                }
                wanted = (softcap > 0 ? (double) softcap * std::tanh(wanted) : wanted) - (j == 4 ? 0.25 : 0.0);
                ASSERT(mask[j] == 0xfc00 ? row[j] == -INFINITY : std::fabs((double) row[j] - wanted) < 1e-5);
                const double weight = std::exp((double) row[j] - (double) max);
                ASSERT(std::fabs((double) p[(size_t) (r * block_keys + j)] - weight) <= 1e-6 * weight);
                top = std::fmax(top, (double) row[j]);
                sum += weight;
            }
            ASSERT((double) max == top && std::fabs(total - sum) < 1e-6 * sum);
        }
        std::vector<float> direct_sums = sums;
        a.values(p.data(), (int) n_rows, halves, width, direct_sums.data());
        a.values(p.data(), (int) n_rows, floats, width, sums.data());
        ASSERT(direct_sums == sums);
        for (int64_t r = 0; r < n_rows; ++r) {
            for (int64_t i = 0; i < width; ++i) {
                float sum = 0; // one key after another: the very bits
                for (int64_t j = 0; j < block_keys; ++j) {
                    sum = std::fma(p[(size_t) (r * block_keys + j)], k[(size_t) (j * width + i)], sum);
                }
                ASSERT(sums[(size_t) (r * width + i)] == sum);
            }
        }
    }
}

} // namespace

int main() {
    dspark::ggml_row_size = size_of_halves;
    for (const char * name : {"avx512_bf16", "avx512", "avx_vnni", "avx2", "neon_i8mm", "neon"}) {
        if (const kernel_table * table = find_kernels(name)) {
            check(*table->attention);
            printf("%s: checked\n", name);
        }
    }
    return 0;
}
