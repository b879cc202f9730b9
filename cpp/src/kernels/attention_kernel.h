// The steps of attention_kernels.h for the vectors of an instruction set I.  Included by one file an instruction set.
#pragma once

#include "attention_kernels.h"
#include "plain_kernel.h"

#include <math.h>
#include <string.h>

namespace dspark::kernels {

namespace {

template <class I> struct attention_steps {
    using vf               = typename I::vf;
    static constexpr int L = I::lanes;

    template <class T, class F> static void widen(const T * row, int64_t n, int64_t width, float * out, F load) {
        int64_t i = 0;
        for (; i + L <= n; i += L) {
            I::store(out + i, load(row + i));
        }
        if (i < n) {
            T last[L] = {};
            memcpy(last, row + i, (size_t) (n - i) * sizeof(T));
            I::store(out + i, load(last));
            i += L;
        }
        for (; i < width; i += L) {
            I::store(out + i, I::zero());
        }
    }

    static void read_row(ggml_type type, const char * row, int64_t n, int64_t width, float * out) {
        switch (type) {
            case GGML_TYPE_F16: widen(reinterpret_cast<const uint16_t *>(row), n, width, out, I::load_f16); break;
            case GGML_TYPE_BF16: widen(reinterpret_cast<const uint16_t *>(row), n, width, out, I::load_bf16); break;
            case GGML_TYPE_F32: widen(reinterpret_cast<const float *>(row), n, width, out, I::load); break;
            default:
                ggml_get_type_traits(type)->to_float(row, out, n);
                memset(out + n, 0, (size_t) (width - n) * sizeof(float));
        }
    }

    // Of a row that lies block_keys further on: short pieces with gaps between them, which the processor does not fetch by itself.
    static void fetch_ahead(const char * row, size_t stride, size_t length) {
        for (size_t at = 0; at < length; at += 64) {
            I::prefetch(row + block_keys * stride + at);
        }
    }

    static void read(ggml_type type, const char * rows, size_t stride, int64_t n_rows, int64_t n, int64_t width, float * out) {
        const size_t length = ggml_row_size(type, n);
        for (int64_t r = 0; r < n_rows; ++r, rows += stride, out += width) {
            fetch_ahead(rows, stride, length);
            read_row(type, rows, n, width, out);
        }
        memset(out, 0, (size_t) ((block_keys - n_rows) * width) * sizeof(float));
    }

    // Four keys and n_rows queries at a time: lane by lane along the row, lanes added up at its end.
    template <class W, int n_rows> static void scores_of(const float * const * q, const rows & keys, int64_t width, float * s, int64_t stride) {
        using weight     = typename W::weight;
        const char * key = keys.first;
        for (int j = 0; j < block_keys; j += 4, key += 4 * keys.stride) {
            const auto * k0 = reinterpret_cast<const weight *>(key);
            const auto * k1 = reinterpret_cast<const weight *>(key + keys.stride);
            const auto * k2 = reinterpret_cast<const weight *>(key + 2 * keys.stride);
            const auto * k3 = reinterpret_cast<const weight *>(key + 3 * keys.stride);
            for (size_t r = 0; sizeof(weight) == 2 && r < 4; ++r) { // floats are copies in the cache
                fetch_ahead(key + r * keys.stride, keys.stride, (size_t) width * sizeof(weight));
            }
            vf acc[n_rows][4];
            for (int r = 0; r < n_rows; ++r) {
                for (int c = 0; c < 4; ++c) {
                    acc[r][c] = I::zero();
                }
            }
            for (int64_t i = 0; i < width; i += L) {
                const vf y0 = W::load(k0 + i), y1 = W::load(k1 + i), y2 = W::load(k2 + i), y3 = W::load(k3 + i);
                for (int r = 0; r < n_rows; ++r) {
                    const vf x = I::load(q[r] + i);
                    acc[r][0]  = I::fma(y0, x, acc[r][0]);
                    acc[r][1]  = I::fma(y1, x, acc[r][1]);
                    acc[r][2]  = I::fma(y2, x, acc[r][2]);
                    acc[r][3]  = I::fma(y3, x, acc[r][3]);
                }
            }
            for (int r = 0; r < n_rows; ++r) {
                I::store_sums(s + r * stride + j, acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
            }
        }
    }

    template <class W> static void scores_with(const float * const * q, int n_rows, const rows & keys, int64_t width, float * s, int64_t stride) {
        constexpr decltype(&scores_of<W, 1>) of[] = {scores_of<W, 1>, scores_of<W, 2>, scores_of<W, 3>, scores_of<W, 4>};
        for (int groups = (n_rows + I::score_rows - 1) / I::score_rows; groups > 0; --groups) {
            const int n = n_rows / groups;
            of[n - 1](q, keys, width, s, stride);
            q += n;
            s += n * stride;
            n_rows -= n;
        }
    }

    static void scores(const float * const * q, int n_rows, const rows & keys, int64_t width, float * s, int64_t stride) {
        switch (keys.type) {
            case GGML_TYPE_F16: scores_with<f16_weights<I>>(q, n_rows, keys, width, s, stride); break;
            case GGML_TYPE_BF16: scores_with<bf16_weights<I>>(q, n_rows, keys, width, s, stride); break;
            default: scores_with<f32_weights<I>>(q, n_rows, keys, width, s, stride);
        }
    }

    // e^x: 2^n e^r with |r| <= log(2) / 2 and e^r as a polynomial; nothing below the smallest normal number.
    static vf exp(vf x) {
        const vf   c = I::larger(I::all(-88.0f), x);
        const auto n = I::round(I::mul(c, I::all(1.44269504f)));
        const vf   m = I::to_float(n);
        const vf   r = I::fnma(m, I::all(-2.12194440e-4f), I::fnma(m, I::all(0.693359375f), c));
        vf         y = I::all(1.9875691500e-4f);
        y            = I::fma(y, r, I::all(1.3981999507e-3f));
        y            = I::fma(y, r, I::all(8.3334519073e-3f));
        y            = I::fma(y, r, I::all(4.1665795894e-2f));
        y            = I::fma(y, r, I::all(1.6666665459e-1f));
        y            = I::fma(y, r, I::all(5.0000001201e-1f));
        y            = I::fma(y, I::mul(r, r), r);
        y            = I::mul(I::add(y, I::all(1.0f)), I::power_of_two(n));
        return I::zero_where_below(y, x, -87.0f);
    }

    // 1 - 2 / (e^2x + 1)
    static vf tanh(vf x) {
        const vf e = exp(I::smaller(I::all(80.0f), I::add(x, x)));
        return I::add(I::all(1.0f), I::div(I::all(-2.0f), I::add(e, I::all(1.0f))));
    }

    static void finish(float * s, const uint16_t * mask, float scale, float softcap, float slope) {
        for (int j = 0; j < block_keys; j += L) {
            const vf m = I::load_f16(mask + j);
            vf       x = I::mul(I::load(s + j), I::all(scale));
            if (softcap != 0.0f) {
                x = I::mul(tanh(x), I::all(softcap));
            }
            I::store(s + j, I::where_equal(m, -INFINITY, I::fma(m, I::all(slope), x)));
        }
    }

    static float largest(const float * s, const int32_t * blocks, int n_blocks) {
        vf m = I::all(-INFINITY);
        for (int b = 0; b < n_blocks; ++b) {
            for (int j = 0; j < block_keys; j += L) {
                m = I::larger(m, I::load(s + blocks[b] * block_keys + j));
            }
        }
        return I::max(m);
    }

    static double weights(const float * s, float max, float * p) {
        auto sum = I::zero_sum();
        for (int j = 0; j < block_keys; j += L) {
            const vf x = exp(I::add(I::load(s + j), I::all(-max)));
            I::store(p + j, x);
            I::add_rounded(sum, x);
        }
        return I::total(sum);
    }

    template <class W, int n_rows, int n_vec> static void values_of(const float * p, const char * from, size_t stride, int64_t width, float * acc) {
        vf a[n_rows][n_vec];
        for (int r = 0; r < n_rows; ++r) {
            for (int c = 0; c < n_vec; ++c) {
                a[r][c] = I::load(acc + r * width + c * L);
            }
        }
        for (int j = 0; j < block_keys; ++j, from += stride) {
            using weight = typename W::weight;
            if (sizeof(weight) == 2) {
                fetch_ahead(from, stride, n_vec * L * sizeof(weight));
            }
            const auto * v = reinterpret_cast<const weight *>(from);
            vf           x[n_vec];
            for (int c = 0; c < n_vec; ++c) {
                x[c] = W::load(v + c * L);
            }
            for (int r = 0; r < n_rows; ++r) {
                const vf w = I::all(p[r * block_keys + j]);
                for (int c = 0; c < n_vec; ++c) {
                    a[r][c] = I::fma(w, x[c], a[r][c]);
                }
            }
        }
        for (int r = 0; r < n_rows; ++r) {
            for (int c = 0; c < n_vec; ++c) {
                I::store(acc + r * width + c * L, a[r][c]);
            }
        }
    }

    template <class W, int n_rows> static void values_of_rows(const float * p, const rows & values, int64_t width, float * acc) {
        constexpr int    n_vec = I::value_vectors;
        constexpr size_t size  = sizeof(typename W::weight);
        int64_t          i     = 0;
        for (; i + n_vec * L <= width; i += n_vec * L) {
            values_of<W, n_rows, n_vec>(p, values.first + (size_t) i * size, values.stride, width, acc + i);
        }
        for (; i < width; i += L) {
            values_of<W, n_rows, 1>(p, values.first + (size_t) i * size, values.stride, width, acc + i);
        }
    }

    template <class W> static void values_with(const float * p, int n_rows, const rows & values, int64_t width, float * acc) {
        constexpr decltype(&values_of_rows<W, 1>) of[] = {values_of_rows<W, 1>, values_of_rows<W, 2>, values_of_rows<W, 3>, values_of_rows<W, 4>};
        for (int groups = (n_rows + 3) / 4; groups > 0; --groups) {
            const int n = n_rows / groups;
            of[n - 1](p, values, width, acc);
            p += n * block_keys;
            acc += n * width;
            n_rows -= n;
        }
    }

    static void values(const float * p, int n_rows, const rows & values, int64_t width, float * acc) {
        switch (values.type) {
            case GGML_TYPE_F16: values_with<f16_weights<I>>(p, n_rows, values, width, acc); break;
            case GGML_TYPE_BF16: values_with<bf16_weights<I>>(p, n_rows, values, width, acc); break;
            default: values_with<f32_weights<I>>(p, n_rows, values, width, acc);
        }
    }
};

template <class I> const attention_kernels * attention_of() {
    using steps = attention_steps<I>;
    static constexpr attention_kernels kernels{I::lanes, steps::read, steps::scores, steps::finish, steps::largest, steps::weights, steps::values};
    return &kernels;
}

} // namespace

} // namespace dspark::kernels
