// The semi-autoregressive head: a low-rank bias from the previous token, slot after slot (paper section 3.1;
// DeepSpec modeling: VanillaMarkov, GatedMarkov, RNNMarkov).
//
// W1 is looked up by *target* ids, W2 gives *draft* rows.  With prev the anchor for the first drafted slot:
//     e = W1[prev];  logits = base + W2 f(e);  prev = target id of the chosen row
// where f is the identity (vanilla), a gate (gated) or a recurrent cell (rnn).
//
// Chosen is the likeliest row, or one drawn from all (pick.h).
#include "draft_graph.h"

namespace dspark {

namespace {

// g = sigmoid(Wg [h; e] + bg);  f = g * e
ggml_tensor * build_gated(ggml_context * ctx, const draft_model & model, ggml_tensor * h, ggml_tensor * e) {
    ggml_tensor * z = ggml_mul_mat(ctx, model.markov_gate, ggml_concat(ctx, h, e, 0));
    return ggml_mul(ctx, ggml_sigmoid(ctx, ggml_add(ctx, z, model.markov_gate_b)), e);
}

// z = Wj [s; e; h] + bj;  (gate, cand, out) = split(z);  s = sig(gate) s + (1 - sig(gate)) tanh(cand);  f = tanh(out)
// state is null at the first drafted slot, where it is zero.
ggml_tensor * build_rnn(ggml_context * ctx, const draft_model & model, ggml_tensor * h, ggml_tensor * e, ggml_tensor *& state) {
    const int64_t R    = model.hp.markov_rank;
    ggml_tensor * s    = state ? state : ggml_scale(ctx, e, 0.0f);
    ggml_tensor * z    = ggml_mul_mat(ctx, model.markov_joint, ggml_concat(ctx, ggml_concat(ctx, s, e, 0), h, 0));
    z                  = ggml_add(ctx, z, model.markov_joint_b);
    const size_t  part = (size_t) R * ggml_element_size(z);
    ggml_tensor * gate = ggml_sigmoid(ctx, ggml_view_1d(ctx, z, R, 0));
    ggml_tensor * cand = ggml_tanh(ctx, ggml_view_1d(ctx, z, R, part));
    ggml_tensor * out  = ggml_tanh(ctx, ggml_view_1d(ctx, z, R, 2 * part));
    // gate s + (1 - gate) cand = cand + gate (s - cand)
    state = ggml_add(ctx, cand, ggml_mul(ctx, gate, ggml_sub(ctx, s, cand)));
    return out;
}

} // namespace

ggml_tensor * build_markov_chain(draft_graph & g, const draft_model & model, ggml_tensor * base, ggml_tensor * hidden) {
    ggml_context * ctx = g.ctx.get();
    const int64_t  K   = base->ne[1];

    if (!model.markov_w1) {
        g.ids.push_back(build_pick(g, model, base, 0));
        if (g.options.with_logits) {
            ggml_set_output(base);
            g.logits.push_back(base);
        }
        return nullptr;
    }

    ggml_tensor * prev      = ggml_view_1d(ctx, g.block_ids, 1, 0); // the anchor
    ggml_tensor * prev_embd = nullptr;
    ggml_tensor * state     = nullptr;
    for (int64_t k = 0; k < K; ++k) {
        ggml_tensor * e = ggml_get_rows(ctx, model.markov_w1, prev); // [R, 1]
        ggml_tensor * h = ggml_view_2d(ctx, hidden, hidden->ne[0], 1, hidden->nb[1], (size_t) k * hidden->nb[1]);
        ggml_tensor * f = e;
        if (model.hp.markov_type == DSPARK_MARKOV_GATED) {
            f = build_gated(ctx, model, h, e);
        } else if (model.hp.markov_type == DSPARK_MARKOV_RNN) {
            f = build_rnn(ctx, model, h, e, state);
        }
        ggml_tensor * bias = ggml_mul_mat(ctx, model.markov_w2, f); // [Vd, 1]
        name_node(g, bias, "markov_bias", (int32_t) k);

        ggml_tensor * base_k = ggml_view_2d(ctx, base, base->ne[0], 1, base->nb[1], (size_t) k * base->nb[1]);
        ggml_tensor * logits = ggml_add(ctx, base_k, bias);
        name_node(g, logits, "logits", (int32_t) k);
        if (g.options.with_logits) {
            ggml_set_output(logits);
            g.logits.push_back(logits);
        }

        prev = build_pick(g, model, logits, k);
        g.ids.push_back(prev);
        if (model.confidence_with_markov()) {
            prev_embd = prev_embd ? ggml_concat(ctx, prev_embd, e, 1) : e;
        }
    }
    return prev_embd;
}

} // namespace dspark
