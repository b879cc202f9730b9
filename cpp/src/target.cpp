#include "target.h"

#include "kernels/hook.h"

#include <algorithm>

namespace dspark {

target::target(llama_context * ctx, const std::vector<int32_t> & layers, int32_t source_kind, dspark_feature_tap * tap) : ctx_(ctx) {
    n_vocab_    = llama_vocab_n_tokens(llama_model_get_vocab(model()));
    n_features_ = layers.size() * (size_t) llama_model_n_embd(model());
    if (llama_model_has_encoder(model())) {
        fail(DSPARK_ERROR_MISMATCH, format("the target (%s) has an encoder; only decoder models can be decoded here", model_architecture(model()).c_str()));
    }
    if (!llama_get_memory(ctx_)) {
        fail(DSPARK_ERROR_MISMATCH, "the target's context has no memory (an embedding model?); it cannot generate");
    }
    const uint32_t n_rs_seq = llama_n_rs_seq(ctx_);
    if (n_rs_seq > 0 && llama_n_ubatch(ctx_) < n_rs_seq + 2) {
        fail(DSPARK_ERROR_ARGUMENT, format("the target's context has n_rs_seq %u and n_ubatch %u, but llama.cpp needs an n_ubatch of %u for it", n_rs_seq,
                                           llama_n_ubatch(ctx_), n_rs_seq + 2));
    }
    if (!layers.empty()) {
        source_ = make_feature_source(ctx, layers, source_kind, tap);
    }
}

const char * no_rollback_reason(llama_context * ctx) {
    const llama_model * model = llama_get_model(ctx);
    if (llama_n_rs_seq(ctx) > 0 && llama_model_n_swa(model) == 0) {
        return nullptr; // snapshots of the state after each of the last tokens
    }
    if (llama_model_is_recurrent(model)) {
        return "the target's memory is recurrent: a rejected token could not be taken back";
    }
    if (llama_model_is_hybrid(model)) {
        return "the target's memory is partly recurrent: a rejected token could not be taken back";
    }
    return nullptr;
}

// What another device computes is not seen by the kernels' counters.
static bool only_cpu() {
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        if (ggml_backend_dev_type(ggml_backend_dev_get(i)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return false;
        }
    }
    return true;
}

void target::require_tokens(const int32_t * tokens, int32_t n) const {
    for (int32_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab_) {
            fail(DSPARK_ERROR_ARGUMENT, format("token %d of the input is %d, expected 0 to %d", i, tokens[i], n_vocab_ - 1));
        }
    }
}

void target::decode(const int32_t * tokens, int32_t n, int32_t pos, int32_t first_logits, std::vector<float> & features) {
    const size_t count = (size_t) n;
    pos_.resize(count);
    n_seq_id_.assign(count, 1);
    seq_ids_.assign(count, &seq_id_);
    logits_.resize(count);
    const bool all = source_ && source_->needs_all_outputs();
    for (int32_t i = 0; i < n; ++i) {
        pos_[(size_t) i]    = pos + i;
        logits_[(size_t) i] = all || i >= first_logits;
    }
    llama_batch batch = {};
    batch.n_tokens    = n;
    batch.token       = const_cast<llama_token *>(tokens); // only read
    batch.pos         = pos_.data();
    batch.n_seq_id    = n_seq_id_.data();
    batch.seq_id      = seq_ids_.data();
    batch.logits      = logits_.data();

    features.clear();
    if (source_) {
        features.resize(count * n_features_); // not behind the decode, which an exception would have to take back
        source_->begin();
    }
    const int64_t declined = kernels::declined();
    const int32_t status   = llama_decode(ctx_, batch);
    is_exact_              = is_exact_ && kernels::is_active() && kernels::declined() == declined && only_cpu();
    if (status != 0) {
        take_back(pos, status != 1 && status != -1);
        fail(status == 1 ? DSPARK_ERROR_CONTEXT_FULL : DSPARK_ERROR_BACKEND,
             format("llama_decode returned %d for %d tokens at position %d%s", status, n, pos,
                    status == 1 ? ": the target's memory has no place for them" : status == 2 ? ": aborted by the caller" : ""));
    }
    batch_first_ = pos;
    if (source_) {
        try {
            source_->collect(features.data(), n);
        } catch (...) {
            take_back(pos, true);
            throw;
        }
    }
}

// A recurrent state that was computed in part is none.
void target::take_back(int32_t pos, bool was_computed) {
    if (was_computed && n_rollback() != INT32_MAX) {
        clear();
    } else {
        remove_from(pos);
    }
}

void target::clear() {
    llama_memory_seq_rm(llama_get_memory(ctx_), 0, -1, -1);
}

int32_t target::n_rollback() const {
    if (!llama_model_is_recurrent(model()) && !llama_model_is_hybrid(model())) {
        return INT32_MAX;
    }
    return (int32_t) llama_n_rs_seq(ctx_);
}

bool target::remove_from(int32_t pos) {
    llama_memory_t memory = llama_get_memory(ctx_);
    // llama.cpp does not look how many snapshots the last batch has really made: none older than its first token
    const bool too_old = n_rollback() != INT32_MAX && pos > 0 && pos <= last_position() && pos <= batch_first_;
    if (!too_old && llama_memory_seq_rm(memory, 0, pos, -1)) {
        // a sliding-window cache may have dropped cells that the token at pos would look at
        const int32_t window = llama_model_n_swa(model());
        const int32_t needed = window > 0 ? std::max(0, pos - window + 1) : 0;
        if (pos == 0 || window == 0 || llama_memory_seq_pos_min(memory, 0) <= needed) {
            return true;
        }
    }
    clear();
    return false;
}

} // namespace dspark
