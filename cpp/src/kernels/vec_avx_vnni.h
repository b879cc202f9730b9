// AVX2 with the dot products of VNNI in 256 bits, as processors without AVX-512 have them.
#pragma once

#include "vec_avx2_pair.h"

namespace dspark::kernels {

namespace {

struct avx_vnni : avx2_pair {
    static constexpr int q8_bias = 128; // the instruction takes unsigned weights
    static constexpr int quant_cols(int /*bits*/) { return 8; }
};

template <int bits, int n_cols> struct dot_sums<avx_vnni, bits, n_cols> : dot_sums<avx2_pair, 6, n_cols> {
    using base = dot_sums<avx2_pair, 6, n_cols>;
    using vi   = avx2_pair::vi;

    void add(const vi (&w)[4], const act_group * x, int at) {
        for (int c = 0; c < n_cols; ++c) {
            vi & sum = base::of[c];
            for (int i = 0; i < 4; ++i) {
                const __m256i four = avx2::all4(x[c].q + at + 4 * i);
                sum                = {_mm256_dpbusd_avx_epi32(sum.a, w[i].a, four), _mm256_dpbusd_avx_epi32(sum.b, w[i].b, four)};
            }
        }
    }
};

} // namespace

} // namespace dspark::kernels
