#include "draft_graph.h"

#include <cmath>

namespace dspark {

namespace {

// RMSNorm over dimension 0, times w if there is one: x / sqrt(mean(x^2) + eps) * w
ggml_tensor * build_norm(draft_graph & g, const draft_model & model, ggml_tensor * x, ggml_tensor * w) {
    ggml_tensor * cur = ggml_rms_norm(g.ctx.get(), x, model.hp.rms_eps);
    return w ? ggml_mul(g.ctx.get(), cur, w) : cur;
}

// Half-rotation (NeoX) rope at the given absolute positions; x is [d, heads, n]
ggml_tensor * build_rope(draft_graph & g, const draft_model & model, ggml_tensor * x, ggml_tensor * pos) {
    const draft_hparams & hp = model.hp;
    return ggml_rope_ext(g.ctx.get(), x, pos, model.rope_freqs, hp.n_rot, GGML_ROPE_TYPE_NEOX, hp.rope_n_ctx_orig, hp.rope_freq_base,
                         hp.rope_freq_scale, hp.rope_ext_factor, hp.rope_attn_factor, hp.rope_beta_fast, hp.rope_beta_slow);
}

// k = rope(norm(Wk x)), v = Wv x, written to the given cells.  x is the fused context [H, n] or a layer's normed block.
void build_kv(draft_graph & g, const draft_model & model, const kv_tensors & kv, size_t il, ggml_tensor * x, ggml_tensor * pos,
              ggml_tensor * cell, const char * suffix) {
    const draft_hparams & hp    = model.hp;
    const draft_layer &   layer = model.layers[il];
    ggml_context *        ctx   = g.ctx.get();
    const int64_t         n     = x->ne[1];
    const int64_t         dk    = (int64_t) hp.n_embd_head * hp.n_head_kv;

    // k = Wk x; v = Wv x, or the raw k where the layer shares them
    ggml_tensor * k = ggml_mul_mat(ctx, layer.wk, x);
    ggml_tensor * v = layer.wv ? ggml_mul_mat(ctx, layer.wv, x) : k;
    k = ggml_reshape_3d(ctx, k, hp.n_embd_head, hp.n_head_kv, n);
    v = ggml_reshape_3d(ctx, v, hp.n_embd_head, hp.n_head_kv, n);

    // k = rope(k_norm(k), pos); v is not rotated, and normed (without weight) in Gemma 4 only
    k = build_rope(g, model, build_norm(g, model, k, layer.k_norm), pos);
    v = hp.value_norm ? build_norm(g, model, v, nullptr) : v;
    name_node(g, k, (std::string("k_") + suffix).c_str(), (int32_t) il);
    name_node(g, v, (std::string("v_") + suffix).c_str(), (int32_t) il);

    ggml_build_forward_expand(g.graph, ggml_set_rows(ctx, kv.k[il], ggml_reshape_2d(ctx, k, dk, n), cell));
    ggml_build_forward_expand(g.graph, ggml_set_rows(ctx, kv.v[il], ggml_reshape_2d(ctx, v, dk, n), cell));
}

// The first C cells of a cache tensor as heads: [d, C, nkv]
ggml_tensor * view_cells(draft_graph & g, const draft_model & model, ggml_tensor * cache) {
    const draft_hparams & hp = model.hp;
    ggml_tensor * heads = ggml_view_3d(g.ctx.get(), cache, hp.n_embd_head, hp.n_head_kv, g.options.n_kv,
                                       ggml_row_size(cache->type, hp.n_embd_head), cache->nb[1], 0);
    return ggml_permute(g.ctx.get(), heads, 0, 2, 1, 3);
}

// softmax(q k^T * scale + mask) v over the cache; returns Wo of it, [H, S]
ggml_tensor * build_attention(draft_graph & g, const draft_model & model, const kv_tensors & kv, size_t il, ggml_tensor * x) {
    const draft_hparams & hp    = model.hp;
    const draft_layer &   layer = model.layers[il];
    ggml_context *        ctx   = g.ctx.get();
    const int64_t         S     = x->ne[1];

    ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, layer.wq, x), hp.n_embd_head, hp.n_head, S);
    q = build_rope(g, model, build_norm(g, model, q, layer.q_norm), g.block_pos);
    name_node(g, q, "q", (int32_t) il);
    q = ggml_permute(ctx, q, 0, 2, 1, 3);

    build_kv(g, model, kv, il, x, g.block_pos, g.block_cell, "block");

    ggml_tensor * k    = view_cells(g, model, kv.k[il]);
    ggml_tensor * v    = view_cells(g, model, kv.v[il]);
    ggml_tensor * attn = ggml_flash_attn_ext(ctx, q, k, v, g.mask[layer.is_swa][layer.is_causal], hp.attn_scale, 0.0f, 0.0f);
    ggml_prec_set_acc(attn, GGML_PREC_F32);
    if (layer.attn_sinks) {
        ggml_flash_attn_ext_add_sinks(attn, layer.attn_sinks);
    }
    attn = ggml_mul_mat(ctx, layer.wo, ggml_reshape_2d(ctx, attn, (int64_t) hp.n_embd_head * hp.n_head, S));
    attn = hp.value_scale != 1.0f ? ggml_scale(ctx, attn, hp.value_scale) : attn;
    name_node(g, attn, "attn_out", (int32_t) il);
    return attn;
}

// down(act(gate x) * up x)
ggml_tensor * build_ffn(draft_graph & g, const draft_model & model, const draft_layer & layer, ggml_tensor * x) {
    ggml_context * ctx  = g.ctx.get();
    ggml_tensor *  gate = ggml_mul_mat(ctx, layer.ffn_gate, x);
    ggml_tensor *  up   = ggml_mul_mat(ctx, layer.ffn_up, x);
    ggml_tensor *  cur  = nullptr;
    switch (model.hp.act) {
        case activation::silu:      cur = ggml_swiglu_split(ctx, gate, up); break;
        case activation::gelu:      cur = ggml_geglu_erf_split(ctx, gate, up); break;
        case activation::gelu_tanh: cur = ggml_geglu_split(ctx, gate, up); break;
    }
    return ggml_mul_mat(ctx, layer.ffn_down, cur);
}

ggml_tensor * new_input(draft_graph & g, ggml_type type, int64_t ne0, int64_t ne1, const char * name) {
    ggml_tensor * input = ggml_new_tensor_2d(g.ctx.get(), type, ne0, ne1);
    ggml_set_name(input, name);
    ggml_set_input(input);
    return input;
}

// ctx = fc_norm(fc f), shared by all layers; each layer's K/V of it go into the cache.  The layer's own input norm is not
// applied to the context.
void build_inject(draft_graph & g, const draft_model & model, const kv_tensors & kv) {
    g.features    = new_input(g, GGML_TYPE_F32, model.hp.n_features(), g.options.n_inject, "features");
    g.inject_pos  = new_input(g, GGML_TYPE_I32, g.options.n_inject, 1, "inject_pos");
    g.inject_cell = new_input(g, GGML_TYPE_I64, g.options.n_inject, 1, "inject_cell");

    g.fused = build_norm(g, model, ggml_mul_mat(g.ctx.get(), model.fc, g.features), model.fc_norm);
    name_node(g, g.fused, "fused_ctx");
    for (size_t il = 0; il < model.layers.size(); ++il) {
        build_kv(g, model, kv, il, g.fused, g.inject_pos, g.inject_cell, "ctx");
    }
}

// The block [anchor, mask, ...] through all layers; returns the final-normed hidden states [H, S].
ggml_tensor * build_block(draft_graph & g, const draft_model & model, const shared_weights & shared, const kv_tensors & kv) {
    const draft_hparams & hp  = model.hp;
    ggml_context *        ctx = g.ctx.get();
    const int64_t         S   = hp.block_size;

    g.block_ids  = new_input(g, GGML_TYPE_I32, S, 1, "block_ids");
    g.block_pos  = new_input(g, GGML_TYPE_I32, S, 1, "block_pos");
    g.block_cell = new_input(g, GGML_TYPE_I64, S, 1, "block_cell");
    for (const draft_layer & layer : model.layers) {
        ggml_tensor *& mask = g.mask[layer.is_swa][layer.is_causal];
        mask = mask ? mask : new_input(g, GGML_TYPE_F16, g.options.n_kv, S, "mask");
    }

    // x = embed[ids] * scale
    ggml_tensor * x = ggml_get_rows(ctx, shared.tok_embd, g.block_ids);
    x = hp.embedding_scale != 1.0f ? ggml_scale(ctx, x, hp.embedding_scale) : x;
    name_node(g, x, "block_embd");

    for (size_t il = 0; il < model.layers.size(); ++il) {
        const draft_layer & layer = model.layers[il];
        // x = x + [post_norm](attention(attn_norm(x)))
        ggml_tensor * cur = build_attention(g, model, kv, il, build_norm(g, model, x, layer.attn_norm));
        cur = layer.attn_post_norm ? build_norm(g, model, cur, layer.attn_post_norm) : cur;
        x = ggml_add(ctx, cur, x);
        // x = x + [post_norm](ffn(ffn_norm(x)))
        cur = build_ffn(g, model, layer, build_norm(g, model, x, layer.ffn_norm));
        cur = layer.ffn_post_norm ? build_norm(g, model, cur, layer.ffn_post_norm) : cur;
        x = ggml_add(ctx, cur, x);
        // x = x * layer_scale
        x = layer.out_scale ? ggml_mul(ctx, x, layer.out_scale) : x;
        name_node(g, x, "layer_out", (int32_t) il);
    }
    x = build_norm(g, model, x, model.output_norm);
    name_node(g, x, "block_out");
    return x;
}

// u = softcap(head h * scale), in draft rows: [Vd, K]
ggml_tensor * build_head(draft_graph & g, const draft_model & model, const shared_weights & shared, ggml_tensor * hidden) {
    const draft_hparams & hp  = model.hp;
    ggml_context *        ctx = g.ctx.get();
    ggml_tensor *         cur = ggml_mul_mat(ctx, shared.output, hidden);
    cur = hp.logit_scale != 1.0f ? ggml_scale(ctx, cur, hp.logit_scale) : cur;
    if (hp.logit_softcap > 0) {
        cur = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, cur, 1.0f / hp.logit_softcap)), hp.logit_softcap);
    }
    name_node(g, cur, "base_logits");
    return cur;
}

} // namespace

void name_node(draft_graph & g, ggml_tensor * node, const char * name, int32_t index) {
    ggml_set_name(node, index < 0 ? name : format("%s.%d", name, index).c_str());
    if (g.options.keep_nodes) {
        ggml_set_output(node);
    }
}

ggml_tensor * build_pick(draft_graph & g, const draft_model & model, ggml_tensor * logits, int64_t slot) {
    ggml_tensor * rows = build_pick_rows(g.ctx.get(), logits, g.options.picks ? g.options.picks + slot : nullptr);
    if (!model.d2t) {
        return rows;
    }
    return ggml_reshape_2d(g.ctx.get(), ggml_get_rows(g.ctx.get(), model.d2t, rows), logits->ne[1], 1);
}

draft_graph build_draft_graph(const draft_model & model, const shared_weights & shared, const kv_tensors & kv, const graph_options & options) {
    // generous per-layer and per-slot counts: a description costs a few hundred bytes
    const size_t n_nodes = 256 + 64 * model.layers.size() + 40 * (size_t) model.hp.block_size;

    draft_graph g;
    g.options = options;
    g.ctx     = new_meta_context(n_nodes, n_nodes);
    g.graph   = ggml_new_graph_custom(g.ctx.get(), n_nodes, false);

    build_inject(g, model, kv);
    if (!options.with_block) {
        return g;
    }

    ggml_tensor * hidden = build_block(g, model, shared, kv);
    // slots before the first predicting one have no logits
    const int64_t K = model.hp.n_draft_max();
    if (model.hp.first_slot() > 0) {
        hidden = ggml_view_2d(g.ctx.get(), hidden, hidden->ne[0], K, hidden->nb[1], (size_t) model.hp.first_slot() * hidden->nb[1]);
    }
    ggml_tensor * base      = build_head(g, model, shared, hidden);
    ggml_tensor * prev_embd = build_markov_chain(g, model, base, hidden);
    for (ggml_tensor * ids : g.ids) {
        ggml_set_output(ids);
        ggml_build_forward_expand(g.graph, ids);
    }
    if (model.conf_proj) {
        g.confidence = build_confidence(g, model, hidden, prev_embd);
        ggml_set_output(g.confidence);
        ggml_build_forward_expand(g.graph, g.confidence);
    }
    return g;
}

} // namespace dspark
