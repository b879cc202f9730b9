// The integer sums of a tile of packed rows times n_cols columns, within a group of weights.  An instruction set that has
// something better than one column after another specialises the class; integers come out the same in any order.
#pragma once

#include <stdint.h>

namespace dspark::kernels {

namespace {

// 32 numbers of a column.
struct act_group {
    int8_t  q[32];
    float   d;       // x = d q
    float   sum;     // of the 32 x, from q
    int32_t init[2]; // - bias * sum of the first and the second 16 q: what integer sums begin with
};

template <class I, int bits, int n_cols> struct dot_sums {
    using vi = typename I::vi;
    vi of[n_cols];

    // half: whose init, or -1 for zeros
    void begin(const act_group * x, int half) {
        for (int c = 0; c < n_cols; ++c) {
            of[c] = half < 0 ? I::all(0) : I::all(x[c].init[half]);
        }
    }
    // Adds 16 weights of each row times the numbers of the columns from `at` on.
    void add(const vi (&w)[4], const act_group * x, int at) {
        for (int c = 0; c < n_cols; ++c) {
            for (int i = 0; i < 4; ++i) {
                const vi four = I::all4(x[c].q + at + 4 * i);
                of[c]         = bits == 8 ? I::dot_q8(of[c], w[i], four) : I::dot(of[c], w[i], four);
            }
        }
    }
    vi column(int c) const { return of[c]; }
};

} // namespace

} // namespace dspark::kernels
