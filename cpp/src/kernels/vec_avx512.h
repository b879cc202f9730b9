// The vectors of AVX-512 with VNNI, in the words of the kernels.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace dspark::kernels {

namespace { // code for other instruction sets has functions of the same names

struct avx512 {
    static constexpr int lanes      = 16;
    static constexpr int q8_bias    = 128; // dot() takes unsigned weights
    static constexpr int plain_cols = 6; // most columns of a tile of F16 and BF16
    static constexpr int f32_cols   = 6;
    static constexpr int quant_cols(int /*bits*/) { return 8; }
    static constexpr int rows_beside(int n_cols) { return n_cols == 1 ? 1 : 4; }

    using vf = __m512;
    using vi = __m512i;

    // floats
    static vf zero() { return _mm512_setzero_ps(); }
    static vf load(const float * p) { return _mm512_loadu_ps(p); }
    static vf load_f16(const uint16_t * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
    static vf load_bf16(const uint16_t * p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
    }
    static vf load_u8(const uint8_t * p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p))); }
    static vf load_i8(const uint8_t * p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p))); }
    static vf all(float x) { return _mm512_set1_ps(x); }
    static void store(float * p, vf v) { _mm512_storeu_ps(p, v); }
    static vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
    static vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }  // a b + c
    static vf fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); } // c - a b
    static vf max_abs(vf a, vf b) { return _mm512_max_ps(a, _mm512_abs_ps(b)); }
    static float max(vf a) { return _mm512_reduce_max_ps(a); }
    static vf to_float(vi v) { return _mm512_cvtepi32_ps(v); }
    static vi round(vf v) { return _mm512_cvtps_epi32(v); } // to nearest, ties to even

    // The sums of four vectors, one after another at p.  The same tree of additions for each of them.
    static void store_sums(float * p, vf a, vf b, vf c, vf d) {
        // halves, then quarters: each of a..d becomes four numbers in its own 128-bit lane
        const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        __m512       s  = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
        s               = _mm512_add_ps(s, _mm512_shuffle_ps(s, s, 0x4e));
        s               = _mm512_add_ps(s, _mm512_shuffle_ps(s, s, 0xb1));
        _mm_storeu_ps(p, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s)));
    }

    // for attention
    static constexpr int score_rows    = 4;
    static constexpr int value_vectors = 4;
    static vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
    static vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
    static vf larger(vf a, vf b) { return _mm512_max_ps(a, b); }   // b where either is NaN
    static vf smaller(vf a, vf b) { return _mm512_min_ps(a, b); }  // the same
    static vf power_of_two(vi n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)); }
    static vf zero_where_below(vf y, vf x, float limit) { // y, but 0 where x < limit
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, all(limit), _CMP_NLT_UQ), y);
    }
    static vf where_equal(vf m, float value, vf other) { // value where m is the same, else other
        return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(m, all(value), _CMP_EQ_OQ), all(value));
    }
    // A sum in doubles of numbers each rounded to a multiple of 2^-32, as the last bit of 1.5 * 2^20 makes it.
    using exact_sum = __m512d;
    static exact_sum zero_sum() { return _mm512_setzero_pd(); }
    static __m512d rounded(__m256 v) {
        const __m512d to = _mm512_set1_pd(0x1.8p20);
        return _mm512_sub_pd(_mm512_add_pd(_mm512_cvtps_pd(v), to), to);
    }
    static void add_rounded(exact_sum & s, vf v) {
        s = _mm512_add_pd(s, _mm512_add_pd(rounded(_mm512_castps512_ps256(v)), rounded(_mm512_extractf32x8_ps(v, 1))));
    }
    static double total(exact_sum s) {
        double x[8];
        _mm512_storeu_pd(x, s);
        return x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
    }

    // bytes
    static vi load_bytes(const uint8_t * p) { return _mm512_loadu_si512(p); }
    static vi all(int32_t x) { return _mm512_set1_epi32(x); }
    static vi all4(const int8_t * p) { // the same four bytes in every lane
        int32_t x;
        memcpy(&x, p, 4);
        return _mm512_set1_epi32(x);
    }
    static vi dot(vi sum, vi w, vi x) { return _mm512_dpbusd_epi32(sum, w, x); } // four products a lane, weights of 6 bits or less
    static vi dot_q8(vi sum, vi w, vi x) { return dot(sum, w, x); }              // of Q8_0, with their bias
    template <int bits> static vi low(vi v) { return _mm512_and_si512(v, _mm512_set1_epi8((1 << bits) - 1)); }
    static vi high_nibble(vi v) { return low<4>(_mm512_srli_epi16(v, 4)); }
    // low + ((v >> from) & (2^bits - 1)) * 16, byte by byte
    template <int from, int bits> static vi add_high(vi lo, vi v) {
        const vi moved = from >= 4 ? _mm512_srli_epi16(v, (unsigned) (from >= 4 ? from - 4 : 0)) : _mm512_slli_epi16(v, (unsigned) (from >= 4 ? 0 : 4 - from));
        return _mm512_ternarylogic_epi32(lo, moved, _mm512_set1_epi8(((1 << bits) - 1) << 4), 0xf8); // lo | (moved & mask)
    }
    static void store_i8(int8_t * p, vi v) { _mm_storeu_si128((__m128i *) p, _mm512_cvtsepi32_epi8(v)); }
    static int32_t sum(vi v) { return _mm512_reduce_add_epi32(v); }

    // Into the second cache: the first can wait for few lines at a time, and what computes waits with them.
    static void prefetch(const void * p) { _mm_prefetch((const char *) p, _MM_HINT_T1); }
};

} // namespace

} // namespace dspark::kernels
