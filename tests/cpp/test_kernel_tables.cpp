// The kernels of every instruction set that this processor has, without ggml: a wrong lane, scale or bit of a packed weight,
// a tail of rows or columns left out, a result that depends on its neighbours.  Also run for ARM: see CONTRIBUTING.md.
#include "kernels/isa.h"
#include "kernels/packed_layout.h"
#include "test.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

using namespace dspark::kernels;

namespace {

std::mt19937 random_bits(7);

size_t block_length(ggml_type type) {
    return type >= GGML_TYPE_Q4_K && type <= GGML_TYPE_Q6_K ? 256 : type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ? 1 : 32;
}

size_t block_bytes(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32: return 4;
        case GGML_TYPE_Q4_0: return 18;
        case GGML_TYPE_Q4_1: return 20;
        case GGML_TYPE_Q5_0: return 22;
        case GGML_TYPE_Q8_0: return 34;
        case GGML_TYPE_Q4_K: return 144;
        case GGML_TYPE_Q5_K: return 176;
        case GGML_TYPE_Q6_K: return 210;
        default: return 2;
    }
}

size_t row_size(ggml_type type, int64_t n) { return (size_t) n / block_length(type) * block_bytes(type); }

// Halfs between 1 and 2 and between 1/64 and 1/32: normal numbers, whose value is easily said.
uint16_t small_half() { return (uint16_t) (0x2400 | (random_bits() & 0x3ff)); }
double   half(const uint8_t * p) {
    const int bits = p[0] | p[1] << 8;
    return std::ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25) * (bits >> 15 ? -1 : 1);
}

// A block of random bits with sane scales, and its weights by the format's definition.
void make_block(ggml_type type, uint8_t * p, double * w) {
    for (size_t i = 0; i < block_bytes(type); ++i) {
        p[i] = (uint8_t) random_bits();
    }
    const auto set_half = [p](size_t at) {
        const uint16_t h = small_half();
        memcpy(p + at, &h, 2);
    };
    switch (type) {
        case GGML_TYPE_F32: {
            const float v = (float) ((int) (random_bits() % 2001) - 1000) / 512;
            memcpy(p, &v, 4);
            *w = v;
            break;
        }
        case GGML_TYPE_F16:
            set_half(0);
            *w = half(p);
            break;
        case GGML_TYPE_BF16: {
            const uint32_t bits = 0x3f000000u | (random_bits() & 0x80ff0000u);
            p[0]                = (uint8_t) (bits >> 16);
            p[1]                = (uint8_t) (bits >> 24);
            float v;
            memcpy(&v, &bits, 4);
            *w = v;
            break;
        }
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q8_0:
            set_half(0);
            if (type == GGML_TYPE_Q4_1) {
                set_half(2);
            }
            for (int k = 0; k < 32; ++k) {
                const auto nibble = [&](int at) { return p[at + k % 16] >> (k / 16 * 4) & 15; };
                w[k] = type == GGML_TYPE_Q4_0   ? half(p) * (nibble(2) - 8)
                       : type == GGML_TYPE_Q4_1 ? half(p) * nibble(4) + half(p + 2)
                       : type == GGML_TYPE_Q5_0 ? half(p) * ((nibble(6) | (p[2 + k / 8] >> k % 8 & 1) << 4) - 16)
                                                : half(p) * (int8_t) p[2 + k];
            }
            break;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
            set_half(0);
            set_half(2);
            for (int k = 0; k < 256; ++k) {
                const int       g = k / 32;
                const uint8_t * s = p + 4;
                const int scale   = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
                const int min     = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
                const int low     = p[(type == GGML_TYPE_Q4_K ? 16 : 48) + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
                const int high    = type == GGML_TYPE_Q4_K ? 0 : p[16 + k % 32] >> g & 1;
                w[k]              = half(p) * scale * (low | high << 4) - half(p + 2) * min;
            }
            break;
        case GGML_TYPE_Q6_K:
            set_half(208);
            for (int k = 0; k < 256; ++k) {
                const int low  = p[k / 128 * 64 + k % 64] >> (k % 128 / 64 * 4) & 15;
                const int high = p[128 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
                w[k]           = half(p + 208) * (int8_t) p[192 + k / 16] * ((low | high << 4) - 32);
            }
            break;
        default: ASSERT(!"a type without a reference");
    }
}

void check(const kernel_table & table, ggml_type type) {
    const weight_kernels & kernels = *table.find(type);
    const bool             packs   = format_of(type).bits != 0;
    const int64_t          n_rows  = 2 * table.tile_rows + 3;
    const int64_t          n_k     = packs ? 512 : 77;
    const size_t           bytes   = row_size(type, n_k);

    std::vector<uint8_t> rows((size_t) n_rows * bytes);
    std::vector<double>  w((size_t) (n_rows * n_k));
    for (size_t i = 0, n = w.size() / block_length(type); i < n; ++i) {
        make_block(type, &rows[i * block_bytes(type)], &w[i * block_length(type)]);
    }
    std::vector<uint8_t> packed = rows;
    if (packs) {
        packed.resize(packed_size(type, table.tile_rows, n_k, n_rows));
        pack(type, table.tile_rows, table.q8_bias, n_k, n_rows, rows.data(), packed.data());
        std::vector<uint8_t> back(rows.size());
        unpack(type, table.tile_rows, table.q8_bias, n_k, n_rows, packed.data(), back.data());
        ASSERT(back == rows);
    }
    // kernels may fetch ahead of the weights but not read there: the block ends where they do

    // integers up to 127, which occurs in each 32 of them: neither 8 bits nor BF16 round them
    std::vector<float> x((size_t) (max_cols * n_k));
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = i % 32 == 3 ? -127.0f : (float) ((int) (random_bits() % 255) - 127);
    }

    const int64_t      n_padded = (n_k + (int64_t) kernels.k_step - 1) / (int64_t) kernels.k_step;
    std::vector<float> first((size_t) (max_cols * n_rows));
    for (int n_cols = kernels.n_cols; n_cols > 0; --n_cols) {
        ASSERT(kernels.tile[n_cols - 1]);
        std::vector<char>  activations((size_t) n_padded * kernels.col_bytes * (size_t) n_cols);
        std::vector<float> y((size_t) (n_cols * n_rows), NAN);
        float *            out[max_cols];
        for (int c = 0; c < n_cols; ++c) {
            kernels.gather(&x[(size_t) (c * n_k)], n_k, c, n_cols, activations.data());
            out[c] = &y[(size_t) (c * n_rows)];
        }
        tile_args args{};
        args.weights     = reinterpret_cast<const char *>(packed.data());
        args.stride      = packs ? tile_bytes(type, table.tile_rows, n_k) : bytes;
        args.n_rows      = n_rows;
        args.n_k         = n_k;
        args.activations = activations.data();
        args.out         = out;
        kernels.tile[n_cols - 1](args);

        for (int64_t i = 0; i < n_cols * n_rows; ++i) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < n_k; ++k) {
                const double term = w[(size_t) (i % n_rows * n_k + k)] * (double) x[(size_t) (i / n_rows * n_k + k)];
                sum += term;
                size += std::fabs(term);
            }
            if (!(std::fabs((double) y[(size_t) i] - sum) <= 1e-5 * size)) {
                fprintf(stderr, "%s, type %d, %d columns, column %d, row %d: %g, expected %g\n", table.name, type, n_cols, (int) (i / n_rows),
                        (int) (i % n_rows), (double) y[(size_t) i], sum);
                exit(1);
            }
        }
        if (n_cols == kernels.n_cols) {
            first = y;
        }
        ASSERT(memcmp(first.data(), y.data(), y.size() * sizeof(float)) == 0);
    }
}

} // namespace

int main() {
    dspark::ggml_row_size  = row_size;
    dspark::ggml_type_size = block_bytes;
    int n_checked          = 0;
    for (const char * name : {"avx512_bf16", "avx512", "avx_vnni", "avx2", "neon_i8mm", "neon"}) {
        if (const kernel_table * table = find_kernels(name)) {
            for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
                if (table->find((ggml_type) type)) {
                    check(*table, (ggml_type) type);
                    ++n_checked;
                }
            }
            printf("%s: checked\n", name);
        }
    }
    ASSERT(n_checked % 10 == 0); // every weight type of every set
    return 0;
}
