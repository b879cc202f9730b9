// The vectors of AVX2 with FMA and F16C, in the words of the kernels; see vec_avx512.h.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace dspark::kernels {

namespace {

struct avx2 {
    static constexpr int lanes      = 8;
    static constexpr int plain_cols = 6;
    static constexpr int f32_cols   = 3; // more of them, with two rows, wait for loads
    static constexpr int rows_beside(int n_cols) { return n_cols <= 3 ? 4 : 2; }

    using vf = __m256;
    using vi = __m256i;

    static vf zero() { return _mm256_setzero_ps(); }
    static vf load(const float * p) { return _mm256_loadu_ps(p); }
    static vf load_f16(const uint16_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
    static vf load_bf16(const uint16_t * p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
    }
    static vf load_u8(const uint8_t * p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p))); }
    static vf load_i8(const uint8_t * p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p))); }
    static vf all(float x) { return _mm256_set1_ps(x); }
    static void store(float * p, vf v) { _mm256_storeu_ps(p, v); }
    static vf mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
    static vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
    static vf fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
    static vf max_abs(vf a, vf b) { return _mm256_max_ps(a, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), b)); }
    static float max(vf a) {
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        m        = _mm_max_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    }
    static vf to_float(vi v) { return _mm256_cvtepi32_ps(v); }
    static vi round(vf v) { return _mm256_cvtps_epi32(v); }

    static void store_sums(float * p, vf a, vf b, vf c, vf d) {
        const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
    }

    // for attention
    static constexpr int score_rows    = 2;
    static constexpr int value_vectors = 2;
    static vf add(vf a, vf b) { return _mm256_add_ps(a, b); }
    static vf div(vf a, vf b) { return _mm256_div_ps(a, b); }
    static vf larger(vf a, vf b) { return _mm256_max_ps(a, b); }
    static vf smaller(vf a, vf b) { return _mm256_min_ps(a, b); }
    static vf power_of_two(vi n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
    static vf zero_where_below(vf y, vf x, float limit) { return _mm256_and_ps(y, _mm256_cmp_ps(x, all(limit), _CMP_NLT_UQ)); }
    static vf where_equal(vf m, float value, vf other) { return _mm256_blendv_ps(other, all(value), _mm256_cmp_ps(m, all(value), _CMP_EQ_OQ)); }
    using exact_sum = __m256d;
    static exact_sum zero_sum() { return _mm256_setzero_pd(); }
    static __m256d rounded(__m128 v) {
        const __m256d to = _mm256_set1_pd(0x1.8p20);
        return _mm256_sub_pd(_mm256_add_pd(_mm256_cvtps_pd(v), to), to);
    }
    static void add_rounded(exact_sum & s, vf v) {
        s = _mm256_add_pd(s, _mm256_add_pd(rounded(_mm256_castps256_ps128(v)), rounded(_mm256_extractf128_ps(v, 1))));
    }
    static double total(exact_sum s) {
        double x[4];
        _mm256_storeu_pd(x, s);
        return x[0] + x[1] + x[2] + x[3];
    }

    static vi load_bytes(const uint8_t * p) { return _mm256_loadu_si256((const __m256i *) p); }
    static vi all(int32_t x) { return _mm256_set1_epi32(x); }
    static vi all4(const int8_t * p) {
        int32_t x;
        memcpy(&x, p, 4);
        return _mm256_set1_epi32(x);
    }
    static vi add_fours(vi sum, vi pairs) { return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }
    template <int bits> static vi low(vi v) { return _mm256_and_si256(v, _mm256_set1_epi8((1 << bits) - 1)); }
    static vi high_nibble(vi v) { return low<4>(_mm256_srli_epi16(v, 4)); }
    template <int from, int bits> static vi add_high(vi lo, vi v) {
        const vi moved = from >= 4 ? _mm256_srli_epi16(v, from >= 4 ? from - 4 : 0) : _mm256_slli_epi16(v, from >= 4 ? 0 : 4 - from);
        return _mm256_or_si256(lo, _mm256_and_si256(moved, _mm256_set1_epi8(((1 << bits) - 1) << 4)));
    }
    static void store_i8(int8_t * p, vi v) {
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storel_epi64((__m128i *) p, _mm_packs_epi16(words, words));
    }
    static int32_t sum(vi v) {
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        s         = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    }

    // Into the second cache: the first can wait for few lines at a time, and what computes waits with them.
    static void prefetch(const void * p) { _mm_prefetch((const char *) p, _MM_HINT_T1); }
};

} // namespace

} // namespace dspark::kernels
