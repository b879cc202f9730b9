// P(slot k is accepted | all earlier ones are) = sigmoid(w [h_k; W1[prev_k]] + b), or of w h_k + b for a head without the
// Markov input (paper section 3.2).  h_k is the block's output after its final norm.  Logits are returned: whoever cuts the
// proposal applies the sigmoid, after draft_context has divided them by the file's temperatures.
#include "draft_graph.h"

namespace dspark {

ggml_tensor * build_confidence(draft_graph & g, const draft_model & model, ggml_tensor * hidden, ggml_tensor * prev_embd) {
    ggml_context * ctx = g.ctx.get();
    ggml_tensor *  x   = model.confidence_with_markov() ? ggml_concat(ctx, hidden, prev_embd, 0) : hidden;
    ggml_tensor *  cur = ggml_mul_mat(ctx, model.conf_proj, x);
    cur = model.conf_proj_b ? ggml_add(ctx, cur, model.conf_proj_b) : cur;
    name_node(g, cur, "confidence");
    return cur;
}

} // namespace dspark
