// ARMv8.6's products of 8-bit matrices, for tiles of two columns and more.
#pragma once

#include "dot_sums.h"
#include "vec_neon.h"

namespace dspark::kernels {

namespace {

struct neon_i8mm : neon {};

// One instruction multiplies two rows by two columns over eight weights: a packed vector, four weights of four rows, is put
// together with the next one.  A lone last column goes in the place of both.
template <int bits, int n_cols> struct dot_sums<neon_i8mm, bits, n_cols> {
    using vi                     = neon::vi;
    static constexpr int n_pairs = (n_cols + 1) / 2;
    vi upper[n_pairs], lower[n_pairs]; // rows 0 and 1, rows 2 and 3; of each row the one and the other column

    static constexpr int other(int c) { return c + 1 < n_cols ? c + 1 : c; }

    void begin(const act_group * x, int half) {
        for (int p = 0; p < n_pairs; ++p) {
            upper[p] = lower[p] = half < 0 ? neon::all(0) : vzip1q_s32(neon::all(x[2 * p].init[half]), neon::all(x[other(2 * p)].init[half]));
        }
    }
    void add(const vi (&w)[4], const act_group * x, int at) {
        for (int i = 0; i < 4; i += 2) {
            const int8x16_t rows01 = vreinterpretq_s8_s32(vzip1q_s32(w[i], w[i + 1]));
            const int8x16_t rows23 = vreinterpretq_s8_s32(vzip2q_s32(w[i], w[i + 1]));
            for (int p = 0; p < n_pairs; ++p) {
                const int8x16_t columns = vcombine_s8(vld1_s8(x[2 * p].q + at + 4 * i), vld1_s8(x[other(2 * p)].q + at + 4 * i));
                upper[p]                = vmmlaq_s32(upper[p], rows01, columns);
                lower[p]                = vmmlaq_s32(lower[p], rows23, columns);
            }
        }
    }
    vi column(int c) const { return c % 2 ? vuzp2q_s32(upper[c / 2], lower[c / 2]) : vuzp1q_s32(upper[c / 2], lower[c / 2]); }
};

template <int bits> struct dot_sums<neon_i8mm, bits, 1> : dot_sums<neon, bits, 1> {};

} // namespace

} // namespace dspark::kernels
