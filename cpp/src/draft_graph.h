// Builds the graph of one draft round (and its two halves) out of ggml operations.  Allocates no data.
//
// The round: fuse the features of the rows just verified and put their K/V into the cache, run the block over the
// cache, then head, Markov chain and confidences.  Shapes are in ggml order; T is the number of injected rows, S the
// block's slots, K the drafted ones, C the cache cells that attention looks at.
#pragma once

#include "draft_model.h"
#include "pick.h"

namespace dspark {

// Rows that the injection of a round handles, and one of many rows by itself.  Fixed, with unused rows aimed at a spare cell: a row must
// come out the same, bit for bit, in whatever chunk it arrives, and the kernels that ggml picks depend on the number of columns.
constexpr int32_t n_inject_rows = 4;
constexpr int32_t n_bulk_rows   = 64;

// K/V of one sequence: per layer {nkv*d, n_cells + 1}; the last cell takes the unused rows of an injection.
struct kv_tensors {
    std::vector<ggml_tensor *> k, v;
    int32_t                    n_cells = 0;
};

// What the embedding and head of this round are: the draft's own or the target's.
struct shared_weights {
    ggml_tensor * tok_embd = nullptr; // {H, V}
    ggml_tensor * output   = nullptr; // {H, Vd}
};

struct graph_options {
    bool    with_block  = false; // else only the injection
    bool    with_logits = false; // keep the logits of every slot
    bool    keep_nodes  = false; // keep every named node, for tests
    int32_t n_inject    = n_inject_rows; // T
    int32_t n_kv        = 0;             // C
    slot_pick * picks   = nullptr; // [K], or null for ggml's argmax
};

struct draft_graph {
    ggml_context_ptr ctx;
    ggml_cgraph *    graph = nullptr;
    graph_options    options;

    // inputs
    ggml_tensor * features    = nullptr; // [m*H, T] f32
    ggml_tensor * inject_pos  = nullptr; // [T] i32
    ggml_tensor * inject_cell = nullptr; // [T] i64
    ggml_tensor * block_ids   = nullptr; // [S] i32
    ggml_tensor * block_pos   = nullptr; // [S] i32
    ggml_tensor * block_cell  = nullptr; // [S] i64
    // one mask for each kind of layer that the draft has: [C, S] f16
    ggml_tensor * mask[2][2]  = {{nullptr, nullptr}, {nullptr, nullptr}}; // [is_swa][is_causal]

    // outputs
    ggml_tensor *              fused = nullptr;     // [H, T]
    std::vector<ggml_tensor *> ids;                 // one [n] i32 per chain step, or a single [K]; target ids
    ggml_tensor *              confidence = nullptr; // [1, K] f32 logits
    std::vector<ggml_tensor *> logits;              // one [Vd, n] f32 per chain step, or a single [Vd, K]
};

draft_graph build_draft_graph(const draft_model & model, const shared_weights & shared, const kv_tensors & kv, const graph_options & options);

// Names a node; tests ask for nodes by these names ("fused_ctx", "q.0", "block_out", "markov_bias.2").
void name_node(draft_graph & g, ggml_tensor * node, const char * name, int32_t index = -1);

// The next tokens of a chain, as target ids: picked from logits [Vd, n] of n slots, mapped through d2t.  Returns [n] i32.
ggml_tensor * build_pick(draft_graph & g, const draft_model & model, ggml_tensor * logits, int64_t slot);

// markov_head.cpp: base logits [Vd, K] and hidden [H, K] of the drafted slots to ids (and logits).  Returns the Markov
// embeddings of every slot's previous token, [R, K], or null without a Markov head.
ggml_tensor * build_markov_chain(draft_graph & g, const draft_model & model, ggml_tensor * base, ggml_tensor * hidden);

// confidence_head.cpp: logits [1, K] of the confidence head.
ggml_tensor * build_confidence(draft_graph & g, const draft_model & model, ggml_tensor * hidden, ggml_tensor * prev_embd);

} // namespace dspark
