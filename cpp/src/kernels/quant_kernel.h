// Packed quantised weights times columns quantised to 8 bits in groups of 32, as llama.cpp does it: integer products within
// a group, float sums over the groups in order.  Included by one file an instruction set.
#pragma once

#include "dot_sums.h"
#include "kernel_table.h"
#include "packed_layout.h"

#include <string.h>

namespace dspark::kernels {

namespace {

// The bias of packed weights: weight = d (q - bias).
template <class I> constexpr int bias_of(ggml_type type) {
    return type == GGML_TYPE_Q8_0 ? I::q8_bias : type == GGML_TYPE_Q4_0 ? 8 : type == GGML_TYPE_Q5_0 ? 16 : type == GGML_TYPE_Q6_K ? 32 : 0;
}

template <class I, ggml_type type> void gather_quant(const float * x, int64_t n_k, int i, int n_cols, char * activations) {
    act_group * group = reinterpret_cast<act_group *>(activations) + i;
    for (int64_t k = 0; k < n_k; k += 32, x += 32, group += n_cols) {
        typename I::vf most = I::zero();
        for (int j = 0; j < 32; j += I::lanes) {
            most = I::max_abs(most, I::load(x + j));
        }
        const float            max   = I::max(most);
        const float            d     = max / 127.0f;
        const typename I::vf   scale = I::all(max > 0.0f ? 127.0f / max : 0.0f);
        int32_t                sums[2] = {0, 0};
        for (int j = 0; j < 32; j += I::lanes) {
            const typename I::vi q = I::round(I::mul(I::load(x + j), scale));
            I::store_i8(group->q + j, q);
            sums[j / 16] += I::sum(q);
        }
        group->d       = d;
        group->sum     = d * (float) (sums[0] + sums[1]);
        group->init[0] = -bias_of<I>(type) * (type == GGML_TYPE_Q6_K ? sums[0] : sums[0] + sums[1]);
        group->init[1] = -bias_of<I>(type) * sums[1];
    }
}

// Four of a group's eight vectors of weights: the first or the second 16 weights of each row.
template <class I, int bits, int half> inline void load_half(const uint8_t * group, typename I::vi (&w)[4]) {
    constexpr int vector = 4 * I::lanes;
    if constexpr (bits == 8) {
        for (int i = 0; i < 4; ++i) {
            w[i] = I::load_bytes(group + (4 * half + i) * vector);
        }
        return;
    }
    for (int i = 0; i < 2; ++i) {
        const typename I::vi v = I::load_bytes(group + (2 * half + i) * vector);
        w[i]                   = I::template low<4>(v);
        w[2 + i]               = I::high_nibble(v);
    }
    if constexpr (bits == 5) {
        const typename I::vi v = I::load_bytes(group + 4 * vector);
        w[0]                   = I::template add_high<4 * half + 0, 1>(w[0], v);
        w[1]                   = I::template add_high<4 * half + 1, 1>(w[1], v);
        w[2]                   = I::template add_high<4 * half + 2, 1>(w[2], v);
        w[3]                   = I::template add_high<4 * half + 3, 1>(w[3], v);
    } else if constexpr (bits == 6) {
        const typename I::vi v = I::load_bytes(group + (4 + half) * vector);
        w[0]                   = I::template add_high<0, 2>(w[0], v);
        w[1]                   = I::template add_high<2, 2>(w[1], v);
        w[2]                   = I::template add_high<4, 2>(w[2], v);
        w[3]                   = I::template add_high<6, 2>(w[3], v);
    }
}

// A tile of rows times n_cols columns:  out[c][row] = sum over groups g of  d_g x_g.d (q_g . x_g.q - bias ...) + m_g x_g.sum
template <class I, ggml_type type, int n_cols> void quant_tile(const tile_args & args) {
    using vf                   = typename I::vf;
    using vi                   = typename I::vi;
    constexpr int           L  = I::lanes;
    constexpr packed_format f  = format_of(type);
    constexpr bool          K  = f.n_groups > 1;
    constexpr bool          two_scales = type == GGML_TYPE_Q6_K; // each 16 weights
    constexpr bool          has_min    = f.n_halfs == 2;
    const int64_t           n_blocks   = args.n_k / (32 * f.n_groups);

    const char * tile = args.weights;
    for (int64_t row0 = 0; row0 < args.n_rows; row0 += L, tile += args.stride) {
        const uint8_t *   group  = reinterpret_cast<const uint8_t *>(tile);
        const uint8_t *   record = group + n_blocks * (f.n_groups * f.group_bytes(L));
        const act_group * x      = reinterpret_cast<const act_group *>(args.activations);

        vf acc[n_cols];
        for (int c = 0; c < n_cols; ++c) {
            acc[c] = I::zero();
        }
        for (int64_t b = 0; b < n_blocks; ++b, record += f.scale_bytes(L)) {
            const uint16_t * halfs = reinterpret_cast<const uint16_t *>(record);
            const uint8_t *  bytes = record + 2 * f.n_halfs * L;
            const vf         d     = I::load_f16(halfs);
            const vf         m     = has_min ? I::load_f16(halfs + L) : I::zero();
            for (int g = 0; g < f.n_groups; ++g, group += f.group_bytes(L), x += n_cols) {
                for (int i = 0; i < f.group_bytes(L); i += 64) {
                    I::prefetch(group + i + 8192);
                }
                dot_sums<I, f.bits, n_cols> sum;
                sum.begin(x, bias_of<I>(type) ? 0 : -1);
                vi w[4];
                load_half<I, f.bits, 0>(group, w);
                sum.add(w, x, 0);
                if constexpr (two_scales) {
                    const vf scale = I::mul(d, I::load_i8(bytes + 2 * g * L));
                    for (int c = 0; c < n_cols; ++c) {
                        acc[c] = I::fma(I::to_float(sum.column(c)), I::mul(scale, I::all(x[c].d)), acc[c]);
                    }
                    sum.begin(x, 1);
                }
                load_half<I, f.bits, 1>(group, w);
                sum.add(w, x, 16);
                const vf scale = two_scales ? I::mul(d, I::load_i8(bytes + (2 * g + 1) * L)) : K ? I::mul(d, I::load_u8(bytes + g * L)) : d;
                for (int c = 0; c < n_cols; ++c) {
                    acc[c] = I::fma(I::to_float(sum.column(c)), I::mul(scale, I::all(x[c].d)), acc[c]);
                }
                if constexpr (has_min) {
                    const vf min = K ? I::mul(m, I::load_u8(bytes + (8 + g) * L)) : m;
                    for (int c = 0; c < n_cols; ++c) {
                        acc[c] = K ? I::fnma(min, I::all(x[c].sum), acc[c]) : I::fma(min, I::all(x[c].sum), acc[c]);
                    }
                }
            }
        }
        const int64_t n = args.n_rows - row0;
        for (int c = 0; c < n_cols; ++c) {
            if (n >= L) {
                I::store(args.out[c] + row0, acc[c]);
            } else {
                float last[L];
                I::store(last, acc[c]);
                memcpy(args.out[c] + row0, last, (size_t) n * sizeof(float));
            }
        }
    }
}

template <class I, ggml_type type, int n = 1> void fill_quant_tiles(weight_kernels & k) {
    k.tile[n - 1] = quant_tile<I, type, n>;
    if constexpr (n < I::quant_cols(format_of(type).bits)) {
        fill_quant_tiles<I, type, n + 1>(k);
    }
}

template <class I, ggml_type type> void fill_quant(kernel_table & table) {
    weight_kernels & k = table.of[type];
    k.n_rows           = I::lanes;
    k.n_cols           = I::quant_cols(format_of(type).bits);
    k.k_step           = 32;
    k.col_bytes        = sizeof(act_group);
    k.gather           = gather_quant<I, type>;
    fill_quant_tiles<I, type>(k);
}

template <class I> void fill_all_quant(kernel_table & table) {
    fill_quant<I, GGML_TYPE_Q4_0>(table);
    fill_quant<I, GGML_TYPE_Q4_1>(table);
    fill_quant<I, GGML_TYPE_Q5_0>(table);
    fill_quant<I, GGML_TYPE_Q8_0>(table);
    fill_quant<I, GGML_TYPE_Q4_K>(table);
    fill_quant<I, GGML_TYPE_Q5_K>(table);
    fill_quant<I, GGML_TYPE_Q6_K>(table);
}

} // namespace

} // namespace dspark::kernels
