// The vectors of ARMv8.2 with dot products, in the words of the kernels; see vec_avx512.h.
#pragma once

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

namespace dspark::kernels {

namespace {

struct neon {
    static constexpr int lanes      = 4;
    static constexpr int q8_bias    = 0;
    static constexpr int plain_cols = 5;
    static constexpr int f32_cols   = 5;
    static constexpr int quant_cols(int /*bits*/) { return 8; }
    static constexpr int rows_beside(int /*n_cols*/) { return 4; }

    using vf = float32x4_t;
    using vi = int32x4_t;

    static uint8x16_t bytes(vi v) { return vreinterpretq_u8_s32(v); }
    static vi         whole(uint8x16_t v) { return vreinterpretq_s32_u8(v); }

    static vf zero() { return vdupq_n_f32(0); }
    static vf load(const float * p) { return vld1q_f32(p); }
    static vf load_f16(const uint16_t * p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
    static vf load_bf16(const uint16_t * p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
    static uint8x8_t load4(const uint8_t * p) {
        uint32_t x;
        memcpy(&x, p, 4);
        return vreinterpret_u8_u32(vdup_n_u32(x));
    }
    static vf load_u8(const uint8_t * p) { return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load4(p))))); }
    static vf load_i8(const uint8_t * p) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load4(p)))))); }
    static vf all(float x) { return vdupq_n_f32(x); }
    static void store(float * p, vf v) { vst1q_f32(p, v); }
    static vf mul(vf a, vf b) { return vmulq_f32(a, b); }
    static vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
    static vf fnma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
    static vf max_abs(vf a, vf b) { return vmaxq_f32(a, vabsq_f32(b)); }
    static float max(vf a) { return vmaxvq_f32(a); }
    static vf to_float(vi v) { return vcvtq_f32_s32(v); }
    static vi round(vf v) { return vcvtnq_s32_f32(v); }

    static void store_sums(float * p, vf a, vf b, vf c, vf d) { vst1q_f32(p, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))); }

    // for attention
    static constexpr int score_rows    = 4;
    static constexpr int value_vectors = 4;
    static vf add(vf a, vf b) { return vaddq_f32(a, b); }
    static vf div(vf a, vf b) { return vdivq_f32(a, b); }
    static vf larger(vf a, vf b) { return vmaxq_f32(a, b); } // NaN where either is
    static vf smaller(vf a, vf b) { return vminq_f32(a, b); }
    static vf power_of_two(vi n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
    static vf zero_where_below(vf y, vf x, float limit) {
        return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, all(limit))));
    }
    static vf where_equal(vf m, float value, vf other) { return vbslq_f32(vceqq_f32(m, all(value)), all(value), other); }
    using exact_sum = float64x2_t;
    static exact_sum   zero_sum() { return vdupq_n_f64(0); }
    static float64x2_t rounded(float64x2_t v) { return vsubq_f64(vaddq_f64(v, vdupq_n_f64(0x1.8p20)), vdupq_n_f64(0x1.8p20)); }
    static void        add_rounded(exact_sum & s, vf v) {
        s = vaddq_f64(s, vaddq_f64(rounded(vcvt_f64_f32(vget_low_f32(v))), rounded(vcvt_high_f64_f32(v))));
    }
    static double total(exact_sum s) { return vaddvq_f64(s); }

    static vi load_bytes(const uint8_t * p) { return whole(vld1q_u8(p)); }
    static vi all(int32_t x) { return vdupq_n_s32(x); }
    static vi all4(const int8_t * p) {
        int32_t x;
        memcpy(&x, p, 4);
        return vdupq_n_s32(x);
    }
    static vi dot(vi sum, vi w, vi x) { return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x)); }
    static vi dot_q8(vi sum, vi w, vi x) { return dot(sum, w, x); }
    template <int bits> static vi low(vi v) { return whole(vandq_u8(bytes(v), vdupq_n_u8((1 << bits) - 1))); }
    static vi high_nibble(vi v) { return whole(vshrq_n_u8(bytes(v), 4)); }
    template <int from, int bits> static vi add_high(vi lo, vi v) {
        uint8x16_t moved = bytes(v);
        if constexpr (from > 4) {
            moved = vshrq_n_u8(moved, from - 4);
        } else if constexpr (from < 4) {
            moved = vshlq_n_u8(moved, 4 - from);
        }
        return whole(vorrq_u8(bytes(lo), vandq_u8(moved, vdupq_n_u8(((1 << bits) - 1) << 4))));
    }
    static void store_i8(int8_t * p, vi v) {
        const int16x4_t words = vqmovn_s32(v);
        const int8x8_t  all8  = vqmovn_s16(vcombine_s16(words, words));
        const int32_t   four  = vget_lane_s32(vreinterpret_s32_s8(all8), 0);
        memcpy(p, &four, 4);
    }
    static int32_t sum(vi v) { return vaddvq_s32(v); }

    static void prefetch(const void * p) { __builtin_prefetch(p); }
};

} // namespace

} // namespace dspark::kernels
