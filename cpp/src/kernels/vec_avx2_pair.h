// Sixteen lanes of AVX2, for quantised weights: two registers side by side, so that numbers of a column that were read serve both.
#pragma once

#include "dot_sums.h"
#include "vec_avx2.h"

namespace dspark::kernels {

namespace {

struct avx2_pair {
    static constexpr int lanes   = 16;
    static constexpr int q8_bias = 0;
    static constexpr int quant_cols(int bits) { return bits == 8 ? 4 : 8; }

    struct vf {
        avx2::vf a, b;
    };
    struct vi {
        avx2::vi a, b;
    };

    static vf zero() { return {avx2::zero(), avx2::zero()}; }
    static vf load(const float * p) { return {avx2::load(p), avx2::load(p + 8)}; }
    static vf load_f16(const uint16_t * p) { return {avx2::load_f16(p), avx2::load_f16(p + 8)}; }
    static vf load_u8(const uint8_t * p) { return {avx2::load_u8(p), avx2::load_u8(p + 8)}; }
    static vf load_i8(const uint8_t * p) { return {avx2::load_i8(p), avx2::load_i8(p + 8)}; }
    static vf all(float x) { return {avx2::all(x), avx2::all(x)}; }
    static void store(float * p, vf v) {
        avx2::store(p, v.a);
        avx2::store(p + 8, v.b);
    }
    static vf mul(vf x, vf y) { return {avx2::mul(x.a, y.a), avx2::mul(x.b, y.b)}; }
    static vf fma(vf x, vf y, vf z) { return {avx2::fma(x.a, y.a, z.a), avx2::fma(x.b, y.b, z.b)}; }
    static vf fnma(vf x, vf y, vf z) { return {avx2::fnma(x.a, y.a, z.a), avx2::fnma(x.b, y.b, z.b)}; }
    static vf max_abs(vf x, vf y) { return {avx2::max_abs(x.a, y.a), avx2::max_abs(x.b, y.b)}; }
    static float max(vf x) { return avx2::max(avx2::larger(x.a, x.b)); }
    static vf to_float(vi v) { return {avx2::to_float(v.a), avx2::to_float(v.b)}; }
    static vi round(vf v) { return {avx2::round(v.a), avx2::round(v.b)}; }

    static vi load_bytes(const uint8_t * p) { return {avx2::load_bytes(p), avx2::load_bytes(p + 32)}; }
    static vi all(int32_t x) { return {avx2::all(x), avx2::all(x)}; }
    template <int bits> static vi low(vi v) { return {avx2::low<bits>(v.a), avx2::low<bits>(v.b)}; }
    static vi high_nibble(vi v) { return {avx2::high_nibble(v.a), avx2::high_nibble(v.b)}; }
    template <int from, int bits> static vi add_high(vi lo, vi v) {
        return {avx2::add_high<from, bits>(lo.a, v.a), avx2::add_high<from, bits>(lo.b, v.b)};
    }
    static void store_i8(int8_t * p, vi v) {
        avx2::store_i8(p, v.a);
        avx2::store_i8(p + 8, v.b);
    }
    static int32_t sum(vi v) { return avx2::sum(_mm256_add_epi32(v.a, v.b)); }
    static void prefetch(const void * p) { avx2::prefetch(p); }
};

// Multipliers are what these kernels wait for, and making 32-bit numbers of 16-bit ones takes them too: it is done as seldom as sums fit.
template <int bits, int n_cols> struct dot_sums<avx2_pair, bits, n_cols> {
    using vi = avx2_pair::vi;
    vi of[n_cols];

    void begin(const act_group * x, int half) {
        for (int c = 0; c < n_cols; ++c) {
            of[c] = avx2_pair::all(half < 0 ? 0 : x[c].init[half]);
        }
    }
    void add(const vi (&w)[4], const act_group * x, int at) {
        constexpr int run = bits <= 5 ? 4 : 2; // 4 * 2 * 31 * 127 and 2 * 2 * 63 * 127 fit 16 bits
        for (int c = 0; c < n_cols; ++c) {
            for (int i = 0; i < 4; i += run) {
                vi sums = products(w[i], x[c].q + at + 4 * i);
                for (int j = 1; j < run; ++j) {
                    const vi more = products(w[i + j], x[c].q + at + 4 * (i + j));
                    sums          = {_mm256_add_epi16(sums.a, more.a), _mm256_add_epi16(sums.b, more.b)};
                }
                add_fours(of[c], sums);
            }
        }
    }
    vi column(int c) const { return of[c]; }

    // Sums of two products each, of unsigned weights.
    static vi products(vi w, const int8_t * x) {
        const __m256i four = avx2::all4(x);
        return {_mm256_maddubs_epi16(w.a, four), _mm256_maddubs_epi16(w.b, four)};
    }
    static void add_fours(vi & sum, vi pairs) {
        const __m256i ones = _mm256_set1_epi16(1);
        sum                = {_mm256_add_epi32(sum.a, _mm256_madd_epi16(pairs.a, ones)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(pairs.b, ones))};
    }
};

// Q8_0: the weights' signs go to the columns' numbers.  No two sums fit together.
template <int n_cols> struct dot_sums<avx2_pair, 8, n_cols> : dot_sums<avx2_pair, 6, n_cols> {
    using base = dot_sums<avx2_pair, 6, n_cols>;
    using vi   = avx2_pair::vi;

    void add(const vi (&w)[4], const act_group * x, int at) {
        for (int i = 0; i < 4; ++i) {
            const vi size = {_mm256_abs_epi8(w[i].a), _mm256_abs_epi8(w[i].b)};
            for (int c = 0; c < n_cols; ++c) {
                const __m256i four = avx2::all4(x[c].q + at + 4 * i);
                base::add_fours(base::of[c], {_mm256_maddubs_epi16(size.a, _mm256_sign_epi8(four, w[i].a)),
                                              _mm256_maddubs_epi16(size.b, _mm256_sign_epi8(four, w[i].b))});
            }
        }
    }
};

} // namespace

} // namespace dspark::kernels
