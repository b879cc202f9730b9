// What an instruction set offers for attention: steps on a block of keys, which attention.cpp puts together.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

constexpr int block_keys = 32; // keys that are read into floats together

// A block of K or V: F32, F16 or BF16, for which each vector is a whole one.
struct rows {
    ggml_type    type;
    const char * first;
    size_t       stride; // bytes
};

struct attention_kernels {
    int lanes; // of a vector: widths are multiples of it

    // A block of K or V as floats: the first n numbers, filled up with zeros to width, of rows that lie stride bytes apart, and
    // zeros for the rows that are missing behind the n_rows that there are.
    void (*read)(ggml_type type, const char * rows, size_t stride, int64_t n_rows, int64_t n, int64_t width, float * out);

    // s[r * stride + j] = sum over i < width of q[r][i] k_j[i]  for a block of keys, stored as `keys` says; every sum in the same
    // order.
    void (*scores)(const float * const * q, int n_rows, const rows & keys, int64_t width, float * s, int64_t stride);

    // s = softcap tanh(scale s) + slope mask  for one row and a block of keys; a softcap of 0 is none.  Where mask is
    // -inf, s becomes -inf whatever it was.
    void (*finish)(float * s, const uint16_t * mask, float scale, float softcap, float slope);

    // The largest score of a row in some blocks of keys; the order does not matter.
    float (*largest)(const float * s, const int32_t * blocks, int n_blocks);

    // p = exp(s - max)  for one row and a block of keys; returns their sum, each rounded to a multiple of 2^-32.  Doubles hold
    // sums of up to 2^21 such numbers exactly, so these come out the same in any order and grouping.
    double (*weights)(const float * s, float max, float * p);

    // acc[r * width + i] += p[r * block_keys + j] v_j[i]  for the keys of a block, one after another.
    void (*values)(const float * p, int n_rows, const rows & values, int64_t width, float * acc);
};

} // namespace dspark::kernels
