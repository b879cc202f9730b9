#include "feature_source.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

namespace {

// The layer whose input a node is, by the names that llama.cpp's graphs give: l_out-<i> is the output of layer i, and
// embd or (where the model scales its embeddings) inp_scaled the input of layer 0; -1 for any other node.
int32_t layer_of_node(const char * name) {
    if (std::strncmp(name, "l_out-", 6) == 0) {
        char *     end   = nullptr;
        const long layer = std::strtol(name + 6, &end, 10);
        return end != name + 6 && *end == '\0' && layer >= 0 && layer < 4096 ? (int32_t) layer + 1 : -1;
    }
    return std::strcmp(name, "embd") == 0 || std::strcmp(name, "inp_scaled") == 0 ? 0 : -1;
}

} // namespace

bool dspark_feature_tap::on_node(ggml_tensor * node, bool ask) {
    if (!active) {
        return !ask; // "go on", when a node is delivered that nobody wanted
    }
    const int32_t layer = layer_of_node(node->name);
    const auto    found = std::find(layers.begin(), layers.end(), layer);
    if (layer < 0 || found == layers.end()) {
        return !ask;
    }
    if (ask) {
        return true;
    }
    const size_t i = (size_t) (found - layers.begin());
    if (node->type == GGML_TYPE_F32 && node->ne[0] == n_embd) {
        std::vector<float> & to = rows[i];
        if (std::strcmp(node->name, "inp_scaled") == 0) {
            to.resize(to.size() - n_last[i]); // replaces the unscaled embeddings of the same tokens
        }
        const size_t n  = (size_t) dspark::ggml_nelements(node);
        const size_t at = to.size();
        to.resize(at + n);
        dspark::ggml_backend_tensor_get(node, to.data() + at, 0, n * sizeof(float));
        n_last[i] = n;
    }
    return true;
}

namespace dspark {

namespace {

class layer_taps : public feature_source {
  public:
    layer_taps(llama_context * ctx, std::vector<int32_t> layers) : ctx_(ctx), layers_(std::move(layers)) {
        n_embd_ = (size_t) llama_model_n_embd(llama_get_model(ctx));
        set(true);
    }

    ~layer_taps() override { set(false); }

    const char * name() const override { return "layer taps"; }

    void collect(float * out, int32_t n_rows) override {
        const size_t width = layers_.size() * n_embd_;
        for (size_t i = 0; i < layers_.size(); ++i) {
            const float * from = llama_get_embeddings_layer_inp(ctx_, (uint32_t) layers_[i]);
            for (size_t row = 0; row < (size_t) n_rows; ++row) {
                std::memcpy(out + row * width + i * n_embd_, from + row * n_embd_, n_embd_ * sizeof(float));
            }
        }
    }

  private:
    void set(bool on) {
        for (int32_t layer : layers_) {
            llama_set_embeddings_layer_inp(ctx_, (uint32_t) layer, on);
        }
    }

    llama_context *      ctx_;
    std::vector<int32_t> layers_;
    size_t               n_embd_ = 0;
};

class eval_callback : public feature_source {
  public:
    eval_callback(llama_context * ctx, std::vector<int32_t> layers, dspark_feature_tap * tap) : layers_(std::move(layers)), tap_(tap) {
        const llama_model * model = llama_get_model(ctx);
        arch_       = model_architecture(model);
        taps_final_ = std::count(layers_.begin(), layers_.end(), llama_model_n_layer(model)) > 0;
        tap_->n_embd = llama_model_n_embd(model);
        tap_->layers = layers_;
        std::sort(tap_->layers.begin(), tap_->layers.end());
        tap_->layers.erase(std::unique(tap_->layers.begin(), tap_->layers.end()), tap_->layers.end());
        tap_->rows.assign(tap_->layers.size(), {});
        tap_->n_last.assign(tap_->layers.size(), 0);
    }

    ~eval_callback() override { tap_->active = false; }

    const char * name() const override { return "evaluation callback"; }

    // graphs drop the rows without logits inside the last layer
    bool needs_all_outputs() const override { return taps_final_; }

    void begin() override {
        for (std::vector<float> & rows : tap_->rows) {
            rows.clear();
        }
        tap_->active = true;
    }

    void collect(float * out, int32_t n_rows) override {
        tap_->active        = false;
        const size_t n_embd = (size_t) tap_->n_embd;
        const size_t width  = layers_.size() * n_embd;
        for (size_t i = 0; i < layers_.size(); ++i) {
            const size_t               at   = (size_t) (std::find(tap_->layers.begin(), tap_->layers.end(), layers_[i]) - tap_->layers.begin());
            const std::vector<float> & rows = tap_->rows[at];
            if (rows.size() != (size_t) n_rows * n_embd) {
                fail(DSPARK_ERROR_MISMATCH, format("the graph of this %s target delivered %zu rows as the input of layer %d, expected %d; "
                                                   "its features cannot be read",
                                                   arch_.c_str(), rows.size() / n_embd, layers_[i], n_rows));
            }
            for (size_t row = 0; row < (size_t) n_rows; ++row) {
                std::memcpy(out + row * width + i * n_embd, rows.data() + row * n_embd, n_embd * sizeof(float));
            }
        }
    }

  private:
    std::vector<int32_t> layers_;
    dspark_feature_tap * tap_;
    std::string          arch_;
    bool                 taps_final_ = false;
};

} // namespace

std::unique_ptr<feature_source> make_feature_source(llama_context * ctx, const std::vector<int32_t> & layers, int32_t kind, dspark_feature_tap * tap) {
    const llama_model * model   = llama_get_model(ctx);
    const std::string   arch    = model_architecture(model);
    const int32_t       n_layer = llama_model_n_layer(model);
    for (int32_t layer : layers) {
        if (layer < 0 || layer > n_layer) {
            fail(DSPARK_ERROR_MISMATCH, format("the draft taps the input of layer %d, expected 0 to %d for this target", layer, n_layer));
        }
    }
    const bool taps_final = std::count(layers.begin(), layers.end(), n_layer) > 0;
    const bool has_taps   = llama_set_embeddings_layer_inp && llama_get_embeddings_layer_inp && arch_has_layer_taps(arch) &&
                          (!taps_final || arch_has_final_layer_tap(arch));

    if (kind == DSPARK_FEATURES_TAPS && !has_taps) {
        fail(DSPARK_ERROR_MISMATCH, format("llama.cpp offers no layer-input taps for a %s target%s", arch.c_str(), taps_final ? " after its last layer" : ""));
    }
    if (kind == DSPARK_FEATURES_EVAL && !tap) {
        fail(DSPARK_ERROR_ARGUMENT, "features through the evaluation callback need the feature tap that the target's context was made with, got none");
    }
    if (has_taps && kind != DSPARK_FEATURES_EVAL) {
        return std::make_unique<layer_taps>(ctx, layers);
    }
    if (tap) {
        return std::make_unique<eval_callback>(ctx, layers, tap);
    }
    fail(DSPARK_ERROR_MISMATCH, format("llama.cpp offers no layer-input taps for a %s target%s, and its context was made without a feature tap; "
                                       "open the target with dspark_cpp.open_target()",
                                       arch.c_str(), taps_final ? " after its last layer" : ""));
}

} // namespace dspark
