// F32, F16 and BF16 weights as ggml stores them, row by row, times float columns: partial sums lane by lane along the row,
// added up at its end.  Included by one file an instruction set.
#pragma once

#include "kernel_table.h"

#include <string.h>

namespace dspark::kernels {

namespace {

// How a vector of consecutive weights is read and multiplied: here as floats.
template <class I> struct f32_weights {
    using weight = float;
    using number = float; // of the columns
    static constexpr int step   = I::lanes;
    static constexpr int n_cols = I::f32_cols;
    static auto load(const weight * p) { return I::load(p); }
    static auto load_column(const number * p) { return I::load(p); }
    static auto add(typename I::vf acc, typename I::vf w, typename I::vf x) { return I::fma(w, x, acc); }
    static void write_column(const float * x, number * to) { memcpy(to, x, step * sizeof(float)); }
};

template <class I> struct f16_weights : f32_weights<I> {
    using weight = uint16_t;
    static constexpr int n_cols = I::plain_cols;
    static auto load(const weight * p) { return I::load_f16(p); }
};

template <class I> struct bf16_weights : f32_weights<I> {
    using weight = uint16_t;
    static constexpr int n_cols = I::plain_cols;
    static auto load(const weight * p) { return I::load_bf16(p); }
};

// Columns lie interleaved: step numbers of the first, of the second, ..., the next step numbers of the first, ...
template <class W> void gather_plain(const float * x, int64_t n_k, int i, int n_cols, char * activations) {
    auto * to = reinterpret_cast<typename W::number *>(activations) + i * W::step;
    int64_t k = 0;
    for (; k + W::step <= n_k; k += W::step, to += n_cols * W::step) {
        W::write_column(x + k, to);
    }
    if (k < n_k) {
        float last[W::step] = {};
        memcpy(last, x + k, (size_t) (n_k - k) * sizeof(float));
        W::write_column(last, to);
    }
}

// Four rows times n_cols columns.  With several columns rows go side by side, as many as registers hold the sums of, so that a number of
// a column that was read serves all of them.  With one column they go one by one where vectors are wide enough for that: a single stream
// is what processors fetch ahead fastest, and by themselves.
template <class I, class W, int n_cols> void plain_tile(const tile_args & args) {
    using weight           = typename W::weight;
    using vf               = typename I::vf;
    constexpr int R        = 4;
    constexpr int P        = I::rows_beside(n_cols);
    constexpr int S        = W::step;
    const int64_t n_whole  = args.n_k / S * S;
    for (int64_t row0 = 0; row0 < args.n_rows; row0 += R) {
        const weight * rows[R];
        for (int r = 0; r < R; ++r) {
            // behind the last row it is repeated
            const int64_t row = row0 + r < args.n_rows ? row0 + r : args.n_rows - 1;
            rows[r]           = reinterpret_cast<const weight *>(args.weights + (size_t) row * args.stride);
        }
        vf           sums[R][n_cols];
        const char * ahead = args.weights + (size_t) row0 * args.stride + 8192; // rows of a weight lie one behind another
        for (int r0 = 0; r0 < R; r0 += P) {
            vf acc[P][n_cols];
            for (int r = 0; r < P; ++r) {
                for (int c = 0; c < n_cols; ++c) {
                    acc[r][c] = I::zero();
                }
            }
            const auto * x    = reinterpret_cast<const typename W::number *>(args.activations);
            const auto   step = [&acc, &x](const weight * const * from, int64_t k) {
                for (int r = 0; r < P; ++r) {
                    const auto w = W::load(from[r] + k);
                    for (int c = 0; c < n_cols; ++c) {
                        acc[r][c] = W::add(acc[r][c], w, W::load_column(x + c * S));
                    }
                }
                x += n_cols * S;
            };
            for (int64_t k = 0; k < n_whole; k += S) {
                for (size_t i = 0; P > 1 && i < P * S * sizeof(weight); i += 64) {
                    I::prefetch(ahead + i);
                }
                ahead += P * S * sizeof(weight);
                step(rows + r0, k);
            }
            if (n_whole < args.n_k) {
                weight         last[P][S] = {};
                const weight * from[P];
                for (int r = 0; r < P; ++r) {
                    memcpy(last[r], rows[r0 + r] + n_whole, (size_t) (args.n_k - n_whole) * sizeof(weight));
                    from[r] = last[r];
                }
                step(from, 0);
            }
            for (int r = 0; r < P; ++r) {
                for (int c = 0; c < n_cols; ++c) {
                    sums[r0 + r][c] = acc[r][c];
                }
            }
        }
        const int64_t n = args.n_rows - row0;
        for (int c = 0; c < n_cols; ++c) {
            if (n >= R) {
                I::store_sums(args.out[c] + row0, sums[0][c], sums[1][c], sums[2][c], sums[3][c]);
            } else {
                float last[R];
                I::store_sums(last, sums[0][c], sums[1][c], sums[2][c], sums[3][c]);
                memcpy(args.out[c] + row0, last, (size_t) n * sizeof(float));
            }
        }
    }
}

template <class I, class W, int n = 1> void fill_plain_tiles(weight_kernels & k) {
    k.tile[n - 1] = plain_tile<I, W, n>;
    if constexpr (n < W::n_cols) {
        fill_plain_tiles<I, W, n + 1>(k);
    }
}

template <class I, class W> void fill_plain(weight_kernels & k) {
    k.n_rows    = 4;
    k.n_cols    = W::n_cols;
    k.k_step    = W::step;
    k.col_bytes = W::step * sizeof(typename W::number);
    k.gather    = gather_plain<W>;
    fill_plain_tiles<I, W>(k);
}

template <class I> void fill_all_plain(kernel_table & table) {
    fill_plain<I, f32_weights<I>>(table.of[GGML_TYPE_F32]);
    fill_plain<I, f16_weights<I>>(table.of[GGML_TYPE_F16]);
    fill_plain<I, bf16_weights<I>>(table.of[GGML_TYPE_BF16]);
}

} // namespace

} // namespace dspark::kernels
