// Where the target's features come from: the inputs of the tapped layers for every token of a decoded batch.
#pragma once

#include "llama_binding.h"

#include <memory>
#include <vector>

// The evaluation callback's state; handed to llama.cpp when the target's context is made.
struct dspark_feature_tap {
    bool                            active  = false;
    int32_t                         n_embd  = 0;
    std::vector<int32_t>            layers;  // wanted, each once
    std::vector<std::vector<float>> rows;    // per wanted layer, [n][n_embd]
    std::vector<size_t>             n_last;  // per wanted layer, values of the last node copied
    std::vector<float>              scratch;

    // llama.cpp asks for each node (ask = true) and delivers the wanted ones (ask = false).
    bool on_node(ggml_tensor * node, bool ask);
};

namespace dspark {

class feature_source {
  public:
    virtual ~feature_source() = default;

    virtual const char * name() const = 0;

    // True if rows exist only for tokens whose logits are computed, so that the caller must ask for all of them.
    virtual bool needs_all_outputs() const { return false; }

    // Before and after each decode of n_rows tokens.  out is [n_rows][m*H], a row the concatenation in the order of the layers.
    virtual void begin() {}
    virtual void collect(float * out, int32_t n_rows) = 0;
};

// kind is a dspark_feature_source; tap may be null.  Throws DSPARK_ERROR_MISMATCH if the target offers no source.
std::unique_ptr<feature_source> make_feature_source(llama_context * ctx, const std::vector<int32_t> & layers, int32_t kind, dspark_feature_tap * tap);

} // namespace dspark
