// How quantised weights lie in a packed buffer.
//
// L rows (L: lanes of the vectors of 32-bit numbers that the kernels work with) make a tile.  In a tile, a vector of 4 L bytes has, for
// each row, four consecutive weights: what one dot-product instruction takes.  32 consecutive weights of all rows are
// eight such vectors w[0..7] of unsigned numbers, stored as a *group*:
//
//     bits 8:    w[0] .. w[7]
//     bits 4:    w[0] | w[2] << 4,  w[1] | w[3] << 4,  w[4] | w[6] << 4,  w[5] | w[7] << 4
//     bits 5:    as 4 for the low bits, then one vector whose bit i is the fifth bit of w[i]
//     bits 6:    as 4 for the low bits, then two vectors: bits 2i and 2i + 1 of the first are the upper two of w[i], of the second those of w[4 + i]
//
// A tile is all its groups, then one record of scales for each ggml block: the block's fields in the order of `scales` below,
// each for L rows at once.  Nothing is lost: unpacking gives ggml's blocks back.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

struct packed_format {
    int bits;     // of a weight
    int n_groups; // of 32 weights in a ggml block
    int n_halfs;  // 16-bit numbers in a block: d, or d and m
    int n_bytes;  // 8-bit numbers: scales of the groups, then minima; Q6_K: two scales a group

    constexpr int group_bytes(int lanes) const { return bits * 4 * lanes; }
    constexpr int scale_bytes(int lanes) const { return (2 * n_halfs + n_bytes) * lanes; }
};

// weight = d * (q - bias) [+ m], with q as packed; of the K types d and m are those of a group, d * scale and - dmin * min
constexpr packed_format format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return {4, 1, 1, 0};
        case GGML_TYPE_Q4_1: return {4, 1, 2, 0};
        case GGML_TYPE_Q5_0: return {5, 1, 1, 0};
        case GGML_TYPE_Q8_0: return {8, 1, 1, 0};
        case GGML_TYPE_Q4_K: return {4, 8, 2, 16};
        case GGML_TYPE_Q5_K: return {5, 8, 2, 16};
        case GGML_TYPE_Q6_K: return {6, 8, 1, 16};
        default: return {0, 0, 0, 0};
    }
}

// Bytes of one tile of rows of n_k weights, a multiple of 64.
constexpr size_t tile_bytes(ggml_type type, int lanes, int64_t n_k) {
    const packed_format f = format_of(type);
    const size_t        n = (size_t) (n_k / 32);
    return (n * (size_t) f.group_bytes(lanes) + n / (size_t) f.n_groups * (size_t) f.scale_bytes(lanes) + 63) / 64 * 64;
}

// Bytes of n_rows rows, the last tile filled up.
constexpr size_t packed_size(ggml_type type, int lanes, int64_t n_k, int64_t n_rows) {
    return tile_bytes(type, lanes, n_k) * (size_t) ((n_rows + lanes - 1) / lanes);
}

// Between ggml's rows and tiles.  q8_bias: what is added to the weights of Q8_0, 128 or 0.
void pack  (ggml_type type, int lanes, int q8_bias, int64_t n_k, int64_t n_rows, const void * rows, void * packed);
void unpack(ggml_type type, int lanes, int q8_bias, int64_t n_k, int64_t n_rows, const void * packed, void * rows);

} // namespace dspark::kernels
