#include "attention.h"

#include "attention_kernels.h"
#include "isa.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace dspark::kernels {

namespace {

constexpr int64_t  max_rows   = 128;     // of one K/V head, scored against a block of keys while it is in the first cache
constexpr int64_t  value_rows = 32;      // summed up together
constexpr size_t   pass_bytes = 1 << 20; // of scores for each thread in one pass, about
constexpr int64_t  max_keys   = 1 << 21; // attention_kernels::weights
constexpr uint16_t minus_inf  = 0xfc00;  // as F16

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t align(int64_t n) { return round_up(n, 64); }

// softmax over keys of  softcap tanh(scale K q / softcap) + slope mask,  times V;  shapes as in ggml:
// q [n_dk, n_q, n_head, n_batch], k [n_dk, n_kv, n_head_kv, n_batch], v [n_dv, n_kv, n_head_kv, n_batch],
// mask [n_kv, n_q, ..], sinks [n_head], op [n_dv, n_head, n_q, n_batch]
//
// A pass takes n_cols queries of n_heads K/V heads with all query heads that share them; such a (query, head) is a row here.
// First the threads share out the keys and write all scores of the rows; then they share out the rows and sum up V.  Between
// the two they wait for each other, so small passes, as those of many sequences with a token each, go n_held at a time.  A row's
// result is exact in this sense: every score is a sum of its own, the largest score and the sum of the weights do not
// depend on the order of keys, and each number of V is summed up one key after another.  So it is the same bits for any
// neighbours, threads and passes; and keys that are masked, which only add zeros, change nothing wherever they lie.
struct attention {
    attention(const ggml_tensor * dst, int n_threads)
        : op(dst), q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), mask(dst->src[3]), sinks(dst->src[4]),
          kernels(*kernels_of_this_machine()->attention), n_dk(k->ne[0]), n_dv(v->ne[0]), n_q(q->ne[1]), n_head_kv(k->ne[2]),
          n_group(q->ne[2] / k->ne[2]), n_kv(k->ne[1]), n_blocks((n_kv + block_keys - 1) / block_keys),
          width_k(round_up(n_dk, kernels_of_this_machine()->attention->lanes)),
          stride(n_blocks * block_keys + 16), // of the scores of a row: not a power of 2, which would strain the caches
          n_cols(std::min(max_rows / n_group, n_q)),
          n_heads(std::clamp<int64_t>((int64_t) pass_bytes / 4 * n_threads / (n_cols * n_group * stride), 1, n_head_kv)),
          head_passes((n_head_kv + n_heads - 1) / n_heads), col_passes((n_q + n_cols - 1) / n_cols), n_passes(head_passes * col_passes * q->ne[3]),
          n_held(std::clamp<int64_t>((int64_t) pass_bytes * n_threads / score_bytes(), 1, n_passes)) {
        float max_bias;
        memcpy(&scale, op->op_params, sizeof(float));
        memcpy(&max_bias, op->op_params + 1, sizeof(float));
        memcpy(&softcap, op->op_params + 2, sizeof(float));
        scale = softcap != 0.0f ? scale / softcap : scale;

        // ALiBi
        const auto n_head = q->ne[2];
        n_head_log2       = 1;
        while (2 * n_head_log2 <= n_head) {
            n_head_log2 *= 2;
        }
        alibi  = max_bias > 0.0f;
        slope0 = std::pow(2.0f, -max_bias / (float) n_head_log2);
        slope1 = std::pow(2.0f, -max_bias / 2.0f / (float) n_head_log2);
    }

    const ggml_tensor *       op, * q, * k, * v, * mask, * sinks;
    const attention_kernels & kernels;
    int64_t                   n_dk, n_dv, n_q, n_head_kv, n_group, n_kv, n_blocks, width_k, stride, n_cols, n_heads;
    int64_t                   head_passes, col_passes, n_passes, n_held;
    int64_t                   n_head_log2;
    bool                      alibi;
    float                     scale, softcap, slope0, slope1;

    // The work buffer: the scores of each pass held, then for each thread their lists of blocks, a block of K or V, the padded
    // queries of a head, weights and sums.
    int64_t score_bytes() const { return align(n_heads * n_group * n_cols * stride * 4); }
    int64_t list_bytes() const { return align((1 + n_blocks) * 4); }
    int64_t block_bytes() const { return align(block_keys * std::max(width_k, round_up(n_dv, 32)) * 4); }
    int64_t query_bytes() const { return width_k == n_dk ? 0 : align(n_group * n_cols * width_k * 4); }
    int64_t weight_bytes() const { return align(value_rows * block_keys * 4); }
    int64_t sum_bytes() const { return align(value_rows * round_up(n_dv, 32) * 4); }
    int64_t thread_bytes() const { return n_held * list_bytes() + block_bytes() + query_bytes() + weight_bytes() + sum_bytes(); }

    float slope(int64_t head) const {
        if (!alibi) {
            return 1.0f;
        }
        return head < n_head_log2 ? std::pow(slope0, (float) (head + 1)) : std::pow(slope1, (float) (2 * (head - n_head_log2) + 1));
    }

    const uint16_t * mask_row(int64_t col, int64_t head, int64_t batch) const {
        return reinterpret_cast<const uint16_t *>(static_cast<const char *>(mask->data) + (size_t) col * mask->nb[1] +
                                                  (size_t) (head % mask->ne[2]) * mask->nb[2] + (size_t) (batch % mask->ne[3]) * mask->nb[3]);
    }

    int64_t keys_of(int64_t block) const { return std::min<int64_t>(block_keys, n_kv - block * block_keys); }
};

// Pass `index`: queries col0 .. col0 + n_cols - 1 of the K/V heads head0 .. head0 + n_heads - 1.
struct pass {
    pass(const attention & a_, const ggml_compute_params & params_, int64_t index)
        : a(a_), params(params_), held(index % a.n_held), batch(index / a.head_passes / a.col_passes), head0(index % a.head_passes * a.n_heads),
          col0(index / a.head_passes % a.col_passes * a.n_cols), n_heads(std::min(a.n_heads, a.n_head_kv - head0)),
          n_cols(std::min(a.n_cols, a.n_q - col0)), head_rows(n_cols * a.n_group), n_rows(head_rows * n_heads) {
        char * next       = static_cast<char *>(params.wdata);
        next              = reinterpret_cast<char *>(align(reinterpret_cast<intptr_t>(next)));
        const auto take   = [&next](int64_t bytes) { char * p = next; next += bytes; return p; };
        scores            = reinterpret_cast<float *>(take(a.n_held * a.score_bytes()) + held * a.score_bytes());
        next += params.ith * a.thread_bytes();
        n_listed = reinterpret_cast<int32_t *>(take(a.n_held * a.list_bytes()) + held * a.list_bytes());
        floats  = reinterpret_cast<float *>(take(a.block_bytes()));
        padded  = reinterpret_cast<float *>(take(a.query_bytes()));
        weights = reinterpret_cast<float *>(take(a.weight_bytes()));
        sums    = reinterpret_cast<float *>(take(a.sum_bytes()));
    }

    const attention &           a;
    const ggml_compute_params & params;
    int64_t                     held, batch, head0, col0, n_heads, n_cols, head_rows, n_rows;
    float *                     scores;
    int32_t *                   n_listed; // how many blocks have a key that some row attends to; behind it, which
    float *                     floats, * padded, * weights, * sums;

    // The query head and column of row r of the pass; rows of the same K/V head lie together.
    int64_t head(int64_t row) const { return head0 * a.n_group + row / n_cols; }
    int64_t col(int64_t row) const { return col0 + row % n_cols; }

    const int32_t * blocks() const { return n_listed + 1; }

    // This thread's part of n things: begin and end.  Parts go round the threads from pass to pass, as they are not of one size.
    std::pair<int64_t, int64_t> part(int64_t n) const {
        const int64_t i = (params.ith + held) % params.nth;
        return {n * i / params.nth, n * (i + 1) / params.nth};
    }

    void list_blocks() {
        *n_listed = 0;
        uint16_t none[block_keys];
        std::fill(none, none + block_keys, minus_inf);
        for (int64_t b = 0; b < a.n_blocks; ++b) {
            bool seen = !a.mask;
            for (int64_t h = 0; !seen && h < a.mask->ne[2]; ++h) {
                for (int64_t c = n_cols - 1; !seen && c >= 0; --c) {
                    seen = memcmp(a.mask_row(col0 + c, h, batch) + b * block_keys, none, (size_t) a.keys_of(b) * 2) != 0;
                }
            }
            if (seen) {
                n_listed[++*n_listed] = (int32_t) b;
            }
        }
    }

    const char * first_of(const ggml_tensor * t, int64_t head_kv, int64_t block, int64_t i) const {
        return static_cast<const char *>(t->data) + (size_t) (block * block_keys) * t->nb[1] + (size_t) head_kv * t->nb[2] +
               (size_t) batch * t->nb[3] + (size_t) (i / ggml_blck_size(t->type)) * t->nb[0];
    }

    // A block of K or V of a head as floats: n numbers of each row from number i on.
    void read_block(const ggml_tensor * t, int64_t head_kv, int64_t block, int64_t i, int64_t n, int64_t width) {
        a.kernels.read(t->type, first_of(t, head_kv, block, i), t->nb[1], a.keys_of(block), n, width, floats);
    }

    // The same for n_readers rows: few of them read it where it lies.
    rows block_of(const ggml_tensor * t, int64_t head_kv, int64_t block, int64_t i, int64_t n, int64_t width, int64_t n_readers) {
        if (n_readers <= 4 && n == width && !ggml_is_quantized(t->type) && a.keys_of(block) == block_keys) {
            return {t->type, first_of(t, head_kv, block, i), t->nb[1]};
        }
        read_block(t, head_kv, block, i, n, width);
        return {GGML_TYPE_F32, reinterpret_cast<const char *>(floats), (size_t) width * sizeof(float)};
    }

    void score() {
        list_blocks();
        const auto [begin, end] = part(*n_listed * n_heads);
        const float * queries[max_rows];
        int64_t       last = -1;
        for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t h = unit / *n_listed, block = blocks()[unit % *n_listed], row0 = h * head_rows;
            for (int64_t r = 0; last != h && r < head_rows; ++r) {
                queries[r] = query(row0 + r, r);
            }
            last      = h;
            float * s = scores + row0 * a.stride + block * block_keys;
            a.kernels.scores(queries, (int) head_rows, block_of(a.k, head0 + h, block, 0, a.n_dk, a.width_k, head_rows), a.width_k, s, a.stride);
            for (int64_t r = 0; r < head_rows; ++r) {
                finish(s + r * a.stride, row0 + r, block);
            }
        }
    }

    // A row's query, with zeros behind it where it is no whole number of vectors.
    const float * query(int64_t row, int64_t i) {
        const auto * x = reinterpret_cast<const float *>(static_cast<const char *>(a.q->data) + (size_t) col(row) * a.q->nb[1] +
                                                         (size_t) head(row) * a.q->nb[2] + (size_t) batch * a.q->nb[3]);
        if (a.width_k == a.n_dk) {
            return x;
        }
        float * to = padded + i * a.width_k;
        memcpy(to, x, (size_t) a.n_dk * sizeof(float));
        memset(to + a.n_dk, 0, (size_t) (a.width_k - a.n_dk) * sizeof(float));
        return to;
    }

    void finish(float * s, int64_t row, int64_t block) const {
        const int64_t    n    = a.keys_of(block);
        const uint16_t * mask = a.mask ? a.mask_row(col(row), head(row), batch) + block * block_keys : nullptr;
        uint16_t         own[block_keys] = {};
        if (!mask || n < block_keys) {
            if (mask) {
                memcpy(own, mask, (size_t) n * 2);
            }
            std::fill(own + n, own + block_keys, minus_inf);
            mask = own;
        }
        a.kernels.finish(s, mask, a.scale, a.softcap, a.slope(head(row)));
    }

    void sum_up() {
        // rows are split among the threads; and the numbers of V too, where there are few rows
        const int64_t wanted   = (2 * params.nth + n_rows - 1) / n_rows;
        const int64_t slice    = std::max<int64_t>(32, round_up((a.n_dv + wanted - 1) / wanted, 32));
        const int64_t n_slices = (a.n_dv + slice - 1) / slice;
        const auto [begin, end] = part(n_slices * n_rows);
        for (int64_t unit = begin, n; unit < end; unit += n) {
            const int64_t row = unit % n_rows, i = unit / n_rows * slice;
            n = std::min({end - unit, head_rows - row % head_rows, value_rows});
            sum_up(row, n, i, std::min(slice, a.n_dv - i));
        }
    }

    // Numbers i .. i + n - 1 of the results of some rows of one K/V head.
    void sum_up(int64_t row0, int64_t n_sums, int64_t i, int64_t n) {
        const int64_t width = round_up(n, kernels_of_this_machine()->attention->lanes);
        float         max[value_rows];
        double        total[value_rows];
        for (int64_t r = 0; r < n_sums; ++r) {
            const float sink = a.sinks ? static_cast<const float *>(a.sinks->data)[head(row0 + r)] : -INFINITY;
            max[r]           = std::max(a.kernels.largest(scores + (row0 + r) * a.stride, blocks(), *n_listed), sink);
            total[r]         = sink > -INFINITY ? std::exp((double) sink - (double) max[r]) : 0;
        }
        memset(sums, 0, (size_t) (n_sums * width) * sizeof(float));
        for (int b = 0; b < *n_listed; ++b) {
            for (int64_t r = 0; r < n_sums; ++r) {
                total[r] += weigh(row0 + r, blocks()[b], max[r], weights + r * block_keys);
            }
            a.kernels.values(weights, (int) n_sums, block_of(a.v, head0 + row0 / head_rows, blocks()[b], i, n, width, n_sums), width, sums);
        }
        for (int64_t r = 0; r < n_sums; ++r) {
            float * sum = sums + r * width;
            if (!std::all_of(sum, sum + n, [](float x) { return std::isfinite(x); })) {
                sum_up_attended(row0 + r, i, n, max[r], sum);
            }
            write(row0 + r, i, n, sum, total[r] > 0 ? (float) (1 / total[r]) : total[r] == 0 ? 0.0f : NAN);
        }
    }

    double weigh(int64_t row, int64_t block, float max, float * out) const {
        if (max == -INFINITY) { // a row that attends to nothing
            memset(out, 0, block_keys * sizeof(float));
            return 0;
        }
        return a.kernels.weights(scores + row * a.stride + block * block_keys, max, out);
    }

    // The same without touching V where the row does not attend: a weight of 0 does not hide what is not finite.
    void sum_up_attended(int64_t row, int64_t i, int64_t n, float max, float * sum) {
        std::fill(sum, sum + n, 0.0f);
        for (int b = 0; b < *n_listed; ++b) {
            read_block(a.v, head0 + row / head_rows, blocks()[b], i, n, round_up(n, kernels_of_this_machine()->attention->lanes));
            weigh(row, blocks()[b], max, weights);
            for (int64_t j = 0; j < block_keys; ++j) {
                for (int64_t d = 0; d < n && weights[j] != 0; ++d) {
                    sum[d] = std::fma(weights[j], floats[j * round_up(n, kernels_of_this_machine()->attention->lanes) + d], sum[d]);
                }
            }
        }
    }

    void write(int64_t row, int64_t i, int64_t n, const float * sum, float factor) const {
        auto * out = reinterpret_cast<float *>(static_cast<char *>(a.op->data) + (size_t) head(row) * a.op->nb[1] +
                                               (size_t) col(row) * a.op->nb[2] + (size_t) batch * a.op->nb[3]) + i;
        for (int64_t d = 0; d < n; ++d) {
            out[d] = sum[d] * factor;
        }
    }
};

} // namespace

bool attention_supported(const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0];
    const ggml_tensor * k = op->src[1];
    const ggml_tensor * v = op->src[2];
    const auto readable   = [](const ggml_tensor * t) {
        return (t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float) && t->nb[0] == ggml_type_size(t->type) &&
               32 % ggml_blck_size(t->type) == 0;
    };
    return op->type == GGML_TYPE_F32 && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && op->nb[0] == sizeof(float) && readable(k) &&
           readable(v) && ggml_nelements(op) > 0 && ggml_nelements(k) > 0 && k->ne[1] <= max_keys && v->ne[1] == k->ne[1] && v->ne[2] == k->ne[2] &&
           q->ne[2] % k->ne[2] == 0 && q->ne[2] / k->ne[2] <= max_rows && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3];
}

size_t attention_work_size(int n_threads, const ggml_tensor * op) {
    const attention a(op, n_threads);
    return (size_t) (a.n_held * a.score_bytes() + n_threads * a.thread_bytes() + 64);
}

void attention_compute(const ggml_compute_params & params, ggml_tensor * op) {
    const attention a(op, params.nth);
    for (int64_t first = 0; first < a.n_passes; first += a.n_held) {
        const int64_t end = std::min(first + a.n_held, a.n_passes);
        if (first > 0) {
            ggml_private.barrier(params.threadpool); // the last passes' scores have been read
        }
        for (int64_t i = first; i < end; ++i) {
            pass(a, params, i).score();
        }
        ggml_private.barrier(params.threadpool);
        for (int64_t i = first; i < end; ++i) {
            pass(a, params, i).sum_up();
        }
    }
}

} // namespace dspark::kernels
