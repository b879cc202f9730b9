#include "top_k.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dspark {

namespace {

constexpr int32_t lanes = 16; // side by side, so that compilers make vectors of them

float largest(const float * x, int32_t n) {
    float max[lanes];
    std::fill(max, max + lanes, -INFINITY);
    int32_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        for (int32_t j = 0; j < lanes; ++j) {
            max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
        }
    }
    float all = *std::max_element(max, max + lanes);
    for (; i < n; ++i) {
        all = x[i] > all ? x[i] : all;
    }
    return all;
}

// exp(x) for x <= 0, within 1e-6 of it; std::exp makes no vectors.
inline float exp_of_negative(float x) {
    constexpr float round = 12582912.0f; // 1.5 * 2^23: adding it leaves no fraction
    const float     t     = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    const float     whole = t + round;
    const float     r     = t - (whole - round); // -0.5 .. 0.5
    const float     p     = 1.0f + r * (0.693147182f + r * (0.240226462f + r * (0.0555034f + r * (0.00961814f + r * 0.00133274f))));
    int32_t         bits, exponent;
    std::memcpy(&bits, &p, sizeof(bits));
    std::memcpy(&exponent, &whole, sizeof(exponent));
    bits += exponent * (1 << 23); // the low bits of `whole` are the exponent, the high ones leave the integer
    float out;
    std::memcpy(&out, &bits, sizeof(out));
    return out;
}

double sum_of_exp(const float * x, int32_t n, float max) {
    constexpr int32_t n_block = 256; // few enough to be summed up as floats
    double            total   = 0;
    for (int32_t i = 0; i < n; i += n_block) {
        const int32_t count      = std::min(n - i, n_block);
        float         e[n_block] = {};
        for (int32_t j = 0; j < count; ++j) {
            e[j] = exp_of_negative(x[i + j] - max);
        }
        float sum[lanes] = {};
        for (int32_t j = 0; j < n_block; ++j) {
            sum[j % lanes] += e[j];
        }
        for (float s : sum) {
            total += (double) s;
        }
    }
    return total;
}

} // namespace

void top_k(const float * logits, int32_t n, int32_t k, int32_t * out_ids, float * out_probs) {
    const float  max   = largest(logits, n);
    const double total = sum_of_exp(logits, n, max);
    if (!std::isfinite(max) || !std::isfinite(total)) {
        fail(DSPARK_ERROR_BACKEND, "the target's logits are not finite");
    }
    // a heap of the best so far, the worst of them on top; nearly all logits are smaller than that
    const auto better = [logits](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
    for (int32_t i = 0; i < k; ++i) {
        out_ids[i] = i;
    }
    std::make_heap(out_ids, out_ids + k, better);
    for (int32_t i = k; i < n; i += 8 * lanes) {
        const int32_t end = std::min(n, i + 8 * lanes);
        if (!(largest(logits + i, end - i) > logits[out_ids[0]])) {
            continue;
        }
        for (int32_t j = i; j < end; ++j) {
            if (logits[j] > logits[out_ids[0]]) {
                std::pop_heap(out_ids, out_ids + k, better);
                out_ids[k - 1] = j;
                std::push_heap(out_ids, out_ids + k, better);
            }
        }
    }
    std::sort_heap(out_ids, out_ids + k, better);
    for (int32_t i = 0; i < k; ++i) {
        out_probs[i] = (float) (std::exp((double) logits[out_ids[i]] - (double) max) / total);
    }
}

} // namespace dspark
