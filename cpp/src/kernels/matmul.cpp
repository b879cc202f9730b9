#include "matmul.h"

#include "chunk_counter.h"
#include "isa.h"
#include "packed_buffer.h"
#include "packed_layout.h"

#include <algorithm>

namespace dspark::kernels {

namespace {

constexpr size_t align(size_t n) { return (n + 63) / 64 * 64; }

// dst[i0, i1, i2, i3] = sum over k of  src0[k, i0, i2 / r2, i3 / r3] * src1[k, i1, i2, i3]
//
// All columns (i1, i2, i3) that meet the same slice of src0 make one product; they are computed in tiles of nearly equal
// width.  A weight of the model is one slice, a K or V cache one for each of its heads.
struct product {
    product(const ggml_tensor * op)
        : src0(op->src[0]), src1(op->src[1]), dst(op), kernels(kernels_of_this_machine()->find(src0->type)), n_k(src0->ne[0]),
          n_rows(src0->ne[1]), n_slices(src0->ne[2] * src0->ne[3]), r2(src1->ne[2] / src0->ne[2]), r3(src1->ne[3] / src0->ne[3]),
          n_cols(src1->ne[1] * r2 * r3), n_tiles((n_cols + kernels->n_cols - 1) / kernels->n_cols),
          col_bytes((size_t) ((n_k + (int64_t) kernels->k_step - 1) / (int64_t) kernels->k_step) * kernels->col_bytes) {}

    const ggml_tensor *    src0, * src1, * dst;
    const weight_kernels * kernels;
    int64_t                n_k, n_rows, n_slices, r2, r3;
    int64_t                n_cols, n_tiles; // of a slice
    size_t                 col_bytes;       // of a gathered column

    int64_t tile_begin(int64_t tile) const { return n_cols / n_tiles * tile + std::min(tile, n_cols % n_tiles); }

    // Byte offset of column j of a slice in src1 or dst.
    size_t offset(const ggml_tensor * t, int64_t slice, int64_t j) const {
        const int64_t i1 = j % src1->ne[1], i2 = j / src1->ne[1] % r2, i3 = j / src1->ne[1] / r2;
        return (size_t) i1 * t->nb[1] + (size_t) (slice % src0->ne[2] * r2 + i2) * t->nb[2] + (size_t) (slice / src0->ne[2] * r3 + i3) * t->nb[3];
    }

    // Few columns are gathered by every thread for itself: that takes less time than to wait for each other.
    bool private_columns() const { return n_slices * n_cols * n_k <= 8192; }

    // The gathered columns as thread ith finds them in the work buffer.
    char * activations(void * work, int ith) const {
        const size_t begin = align(reinterpret_cast<size_t>(work));
        return reinterpret_cast<char *>(begin) + (private_columns() ? (size_t) ith * copy_bytes() : 0);
    }

    size_t copy_bytes() const { return align((size_t) (n_slices * n_cols) * col_bytes); }
    size_t work_bytes(int n_threads) const { return 64 + copy_bytes() * (size_t) (private_columns() ? n_threads : 1); }

    // Column j of a slice, in the form that the kernels read.
    void gather(int64_t slice, int64_t j, char * activations) const {
        const int64_t wide = n_cols / n_tiles + 1, n_wide = n_cols % n_tiles;
        const int64_t tile = j < n_wide * wide ? j / wide : n_wide + (j - n_wide * wide) / (wide - 1);
        const int64_t first = tile_begin(tile);
        kernels->gather(reinterpret_cast<const float *>(static_cast<const char *>(src1->data) + offset(src1, slice, j)), n_k, (int) (j - first),
                        (int) (tile_begin(tile + 1) - first), activations + (size_t) (slice * n_cols + first) * col_bytes);
    }
};

} // namespace

bool matmul_supported(const ggml_tensor * op) {
    const ggml_tensor * src0 = op->src[0];
    const ggml_tensor * src1 = op->src[1];
    const bool plain = src0->type == GGML_TYPE_F32 || src0->type == GGML_TYPE_F16 || src0->type == GGML_TYPE_BF16;
    if (op->type != GGML_TYPE_F32 || src1->type != GGML_TYPE_F32 || op->nb[0] != sizeof(float) || src1->nb[0] != sizeof(float) ||
        op->op_params[1] != 0) { // a hint at a special matrix, for which ggml has a better way
        return false;
    }
    // no columns are fine: ggml never computes such a product, but asks who could, and packed weights have nobody else
    if (ggml_nelements(src0) == 0 || src1->ne[2] % src0->ne[2] != 0 || src1->ne[3] % src0->ne[3] != 0) {
        return false;
    }
    if (is_packed(src0)) {
        return packable(src0);
    }
    return plain && kernels_of_this_machine()->find(src0->type) && src0->nb[0] == ggml_type_size(src0->type) &&
           (!src0->buffer || ggml_backend_buffer_is_host(src0->buffer));
}

size_t matmul_work_size(int n_threads, const ggml_tensor * op) {
    chunk_counter(const_cast<ggml_tensor *>(op)).reset();
    return product(op).work_bytes(n_threads);
}

void matmul_compute(const ggml_compute_params & params, ggml_tensor * op) {
    const product          p(op);
    const weight_kernels & kernels     = *p.kernels;
    char *                 activations = p.activations(params.wdata, params.ith);

    const bool alone = p.private_columns();
    for (int64_t i = alone ? 0 : params.ith; i < p.n_slices * p.n_cols; i += alone ? 1 : params.nth) {
        p.gather(i / p.n_cols, i % p.n_cols, activations);
    }
    if (!alone) {
        ggml_private.barrier(params.threadpool);
    }

    // Rows are handed out in chunks; within one they go in blocks that stay in the first cache while all tiles pass.  Where float
    // weights meet few tiles the block is no longer than what the kernel fetches ahead: the next one arrives while the last tile
    // computes.
    const bool    packed    = is_packed(p.src0);
    const size_t  stride    = packed ? tile_bytes(p.src0->type, kernels.n_rows, p.n_k) : p.src0->nb[1];
    const int64_t group     = kernels.n_rows;
    const size_t  row_bytes = packed ? stride / (size_t) group : (size_t) p.n_k * p.src0->nb[0];
    const int64_t n_groups  = (p.n_rows + group - 1) / group;
    const size_t  all_bytes = (size_t) (p.n_rows * p.n_slices) * row_bytes;
    const size_t  wanted    = std::clamp<size_t>(all_bytes / (size_t) (4 * params.nth), 8 << 10, 256 << 10);
    const int64_t per_chunk = std::max<int64_t>(1, (int64_t) (wanted / ((size_t) group * row_bytes)));
    const size_t  in_cache  = p.n_tiles == 1 ? wanted : !packed && p.n_tiles <= 4 ? 8 << 10 : 32 << 10;
    const int64_t block     = std::max<int64_t>(1, (int64_t) (in_cache / ((size_t) group * row_bytes))) * group;
    const int64_t n_chunks  = (n_groups + per_chunk - 1) / per_chunk;

    chunk_counter counter(op);
    for (int64_t chunk = counter.take(); chunk < n_chunks * p.n_slices; chunk = counter.take()) {
        const int64_t slice  = chunk / n_chunks;
        const int64_t begin  = chunk % n_chunks * per_chunk * group;
        const int64_t end    = std::min(begin + per_chunk * group, p.n_rows);
        const char *  matrix = static_cast<const char *>(p.src0->data) + (size_t) (slice % p.src0->ne[2]) * p.src0->nb[2] +
                              (size_t) (slice / p.src0->ne[2]) * p.src0->nb[3];
        for (int64_t row0 = begin; row0 < end; row0 += block) {
            tile_args args{};
            args.weights = matrix + (size_t) (packed ? row0 / group : row0) * stride;
            args.stride  = stride;
            args.n_rows  = std::min(block, end - row0);
            args.n_k     = p.n_k;
            for (int64_t tile = 0; tile < p.n_tiles; ++tile) {
                float *       out[max_cols];
                const int64_t first = p.tile_begin(tile), n = p.tile_begin(tile + 1) - first;
                for (int64_t c = 0; c < n; ++c) {
                    out[c] = reinterpret_cast<float *>(static_cast<char *>(p.dst->data) + p.offset(p.dst, slice, first + c)) + row0;
                }
                args.activations = activations + (size_t) (slice * p.n_cols + first) * p.col_bytes;
                args.out         = out;
                kernels.tile[n - 1](args);
            }
        }
    }
    counter.leave(params.nth);
}

} // namespace dspark::kernels
