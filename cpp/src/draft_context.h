// One sequence of a draft: its K/V cache, and the graphs that fill and read it.
//
// A cell of the cache is a position.  Cells [n_first, n_injected) hold the context (n_first is 0 unless it began in the middle of
// a sequence); the features of newer positions wait in
// `pending`, for the next round, whose graph injects the last few, or until there are enough for a graph of their own.  The block of a round writes its own K/V behind the context, where
// the next injection overwrites them: nothing has to be undone after a proposal.
#pragma once

#include "draft_graph.h"
#include "drafter.h"

#include <string>

namespace dspark {

class draft_context : public drafter {
  public:
    struct params {
        int32_t   n_threads  = 4;
        ggml_type type_k     = GGML_TYPE_F16;
        ggml_type type_v     = GGML_TYPE_F16;
        int32_t   n_ctx      = 0;     // longest sequence, 0: no limit
        bool      keep_nodes = false; // for tests: every named node can be read after a proposal
    };

    // target lends what the draft does not own and must outlive the context; may be null if it owns both.
    draft_context(std::shared_ptr<const draft_model> model, const llama_model * target, const params & settings);

    int32_t                      n_draft_max() const override { return model_->hp.n_draft_max(); }
    const std::vector<int32_t> & target_layers() const override { return model_->hp.target_layers; }
    void                         append(const float * features, int32_t n_rows) override;
    void                         rewind(int32_t n_past) override;
    void                         restart(int32_t pos) override;
    uint64_t                     fingerprint() const override { return model_->fingerprint; }
    void                         save(snapshot_writer & to) override;
    void                         load(snapshot_reader & from, int32_t n_past) override;
    int32_t                      n_past() const override { return n_injected_ + n_pending(); }
    void                         propose(int32_t anchor, int32_t n_max, const drawing * how, proposal & out) override { propose(anchor, n_max, false, how, out); }
    bool                         can_draw() const override { return true; }
    void                         drawn_from(int32_t k, distribution & out) const override;
    const char *                 unable_reason() const override;
    int64_t                      compute_us() const override { return compute_us_; }

    void propose(int32_t anchor, int32_t n_max, bool with_logits, const drawing * how, proposal & out);

    const draft_model & model() const { return *model_; }
    // Logits of one slot: rows of the own or borrowed head.
    int32_t             n_logits() const { return (int32_t) shared_.output->ne[1]; }
    size_t              kv_size() const { return kv_buffer_ ? ggml_backend_buffer_get_size(kv_buffer_.get()) : 0; }

    // For tests: the values of a named node of the last proposal, and its shape; empty if there is none of that name.
    std::vector<float> node(const std::string & name, std::vector<int64_t> & ne) const;
    // For tests: bytes that the last proposal gathered from a weight looked up by row.
    size_t gathered_bytes(const std::string & weight) const;
    // For tests: the stored bytes of the cached K (or V) rows of a layer, positions [0, n_injected).
    std::vector<uint8_t> cache_rows(int32_t il, bool v);
    // Injects what is pending, so that the cache holds every appended position.
    void flush();

  private:
    // A built graph with the scheduler that allocated it.
    struct ready_graph {
        draft_graph g;
        sched_ptr   sched;
    };

    int32_t       n_pending() const { return (int32_t) (pending_.size() / (size_t) model_->hp.n_features()); }
    void          borrow_weights(const llama_model * target);
    void          require_runnable(ggml_tensor * op, const char * what) const;
    void          reserve_cells(int32_t n_cells);
    ready_graph & prepare_injection(int32_t n_rows);
    ready_graph & prepare_round(bool with_logits, bool drawn);
    ready_graph & prepare(ready_graph & ready, graph_options options);
    void          set_picks(const drawing * how);
    void          set_inject_inputs(const draft_graph & g, const float * rows, int32_t n_rows);
    void          set_block_inputs(const draft_graph & g, int32_t anchor);
    void          fill_mask(ggml_tensor * mask, bool is_swa, bool is_causal);
    void          compute(ready_graph & ready);
    void          inject_down_to(int32_t n_keep);

    std::shared_ptr<const draft_model> model_;
    params                             params_;
    shared_weights                     shared_;
    backend_ptr                        device_, cpu_; // cpu_ null if the device is the CPU

    kv_tensors       kv_;
    ggml_context_ptr kv_context_;
    buffer_ptr       kv_buffer_;

    std::vector<slot_pick> picks_; // [K], whose addresses the graphs hold
    ready_graph inject_, bulk_, round_, round_logits_;

    int32_t            n_first_    = 0;
    int32_t            n_injected_ = 0;
    std::vector<float> pending_; // [n_pending][m*H]
    int64_t            compute_us_ = 0;

    const ready_graph *    last_ = nullptr; // of the last proposal
    std::vector<float>     feature_rows_;
    std::vector<uint16_t>  mask_values_;
};

} // namespace dspark
