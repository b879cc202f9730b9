// The target's llama_context: batches at absolute positions of sequence 0, their logits and features, and removal of a tail.
#pragma once

#include "feature_source.h"

namespace dspark {

// Null, or why single tokens cannot be taken back from a context's memory.
const char * no_rollback_reason(llama_context * ctx);

class target {
  public:
    // layers empty: no features.
    target(llama_context * ctx, const std::vector<int32_t> & layers, int32_t source_kind, dspark_feature_tap * tap);

    // Throws DSPARK_ERROR_ARGUMENT unless every id is one of the vocabulary: llama.cpp would end the process.
    void require_tokens(const int32_t * tokens, int32_t n) const;

    // Decodes n tokens at pos, pos + 1, ...; logits for the rows from first_logits on.  features gets [n][m*H], or nothing
    // without layers.  On failure the memory holds what it held before, or is empty if it cannot give that back.
    void decode(const int32_t * tokens, int32_t n, int32_t pos, int32_t first_logits, std::vector<float> & features);

    // Logits of a row of the last batch, [n_vocab]; null if it has none.
    const float * logits(int32_t row) const { return llama_get_logits_ith(ctx_, row); }

    // Rows of the last batch, 0: none yet.  llama.cpp builds its graph anew for another number.
    int32_t n_rows() const { return (int32_t) pos_.size(); }

    // Empties sequence 0.
    void clear();

    // The most positions that remove_from() takes back in place right after they were decoded.
    int32_t n_rollback() const;

    // Somebody else has decoded: no snapshots of recurrent memory are known.
    void forget_batch() { batch_first_ = INT32_MAX; }

    // Removes the positions from pos on.  False if the memory cannot (recurrent state, a sliding window that has passed): it is
    // then empty and the caller has to decode again.
    bool remove_from(int32_t pos);

    // The last position held, -1 if none.
    int32_t last_position() const { return llama_memory_seq_pos_max(llama_get_memory(ctx_), 0); }

    // True if in every batch so far a row's logits did not depend on the other rows: all was computed by our kernels.
    bool is_exact() const { return is_exact_; }
    // What the memory holds was decoded by others, or is gone.
    void set_exact(bool is_exact) { is_exact_ = is_exact; }

    const char * source_name() const { return source_ ? source_->name() : "none"; }

    llama_context *     ctx() const { return ctx_; }
    const llama_model * model() const { return llama_get_model(ctx_); }
    int32_t             n_ctx() const { return (int32_t) llama_n_ctx_seq(ctx_); }
    int32_t             n_batch() const { return (int32_t) llama_n_batch(ctx_); }
    int32_t             n_vocab() const { return n_vocab_; }

  private:
    void take_back(int32_t pos, bool was_computed);

    llama_context *                 ctx_;
    int32_t                         n_vocab_    = 0;
    size_t                          n_features_ = 0; // m*H
    bool                            is_exact_   = true;
    int32_t                         batch_first_ = INT32_MAX; // position of the last batch's first token
    std::unique_ptr<feature_source> source_;

    // of the batch
    std::vector<llama_pos>      pos_;
    std::vector<int32_t>        n_seq_id_;
    std::vector<llama_seq_id *> seq_ids_;
    std::vector<int8_t>         logits_;
    llama_seq_id                seq_id_ = 0;
};

} // namespace dspark
