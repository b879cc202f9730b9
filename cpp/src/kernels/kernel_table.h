// What an instruction set offers: for each weight type functions that compute a tile of the product.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

// Some rows of weights times one tile of columns.
struct tile_args {
    const char *    weights;     // the first row, or tile of rows
    size_t          stride;      // bytes to the next row, or tile of rows
    int64_t         n_rows;
    int64_t         n_k;         // length of a row
    const char *    activations; // the columns, as gather() left them
    float * const * out;         // for each column where its n_rows results go
};

using tile_kernel = void (*)(const tile_args & args);

constexpr int max_cols = 8; // no tile has more columns

// Everything about one weight type.
struct weight_kernels {
    int    n_rows;    // computed together: the granularity of splitting rows
    int    n_cols;    // most columns of a tile
    size_t k_step;    // columns are filled up with zeros to a multiple
    size_t col_bytes; // of a gathered column, for every k_step of its length
    // Writes column i of a tile of n_cols in the form that the kernel reads.
    void (*gather)(const float * column, int64_t n_k, int i, int n_cols, char * activations);
    tile_kernel tile[max_cols]; // [n_cols - 1]
};

struct attention_kernels;

struct kernel_table {
    const char *   name;
    int            tile_rows; // of packed weights
    int            q8_bias;   // of packed Q8_0
    const attention_kernels * attention;
    weight_kernels of[GGML_TYPE_COUNT]; // no tile[0]: not covered

    const weight_kernels * find(ggml_type type) const { return type >= 0 && type < GGML_TYPE_COUNT && of[type].tile[0] ? &of[type] : nullptr; }
};

// Those of this build; null where the compiler makes code for another architecture.
const kernel_table * table_avx512_bf16();
const kernel_table * table_avx512();
const kernel_table * table_avx_vnni();
const kernel_table * table_avx2();
const kernel_table * table_neon_i8mm();
const kernel_table * table_neon();

} // namespace dspark::kernels
