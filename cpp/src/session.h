// One sequence of a target, decoded with a drafter: the only place where target, drafter and verification meet.
//
// Between calls, with n = tokens_.size():
//   - the target's memory holds positions [0, n) and, while a round is open, its not yet accepted drafts behind them (or nothing, if
//     it could not take back a batch that failed);
//   - pending_ is the token returned last, standing at position n, not yet decoded (-1: none);
//   - the drafter holds the features of [0, n), less those that it is owed: of an open round, given when the round closes, and
//     of rows that it failed to take, offered again before its next proposal.
#pragma once

#include "depth.h"
#include "drafter.h"
#include "sampler_chain.h"
#include "ownership.h"
#include "target.h"
#include "verify.h"

#include <memory>

namespace dspark {

class session {
  public:
    struct params {
        int32_t              n_ctx          = 0;
        std::vector<int32_t> tokens;                   // already in the target's memory
        bool                 logits_all     = false;
        int32_t              n_draft_max    = -1;
        float                confidence_min = 0;
        bool                 auto_depth     = false;
        int32_t              verify         = DSPARK_VERIFY_MATCH;
        int32_t              feature_source = DSPARK_FEATURES_AUTO;
        dspark_feature_tap * feature_tap    = nullptr;
    };

    // draft null: plain decoding.
    session(llama_context * ctx, std::unique_ptr<drafter> draft, const params & settings);
    ~session();

    session(const session &)             = delete;
    session & operator=(const session &) = delete;

    // See dspark.h for what each does and in which state an error leaves the session.
    int32_t append(const int32_t * tokens, int32_t n_tokens);
    int32_t next(llama_sampler * sampler, int32_t n_draft_max);
    void    settle();
    void    rewind(int32_t n_tokens);
    void    adopt(const int32_t * tokens, int32_t n_tokens);

    std::vector<uint8_t> save();
    void                 load(const uint8_t * data, size_t n_bytes);

    const std::vector<int32_t> & tokens() const { return tokens_; }
    int32_t                      n_tokens() const { return (int32_t) tokens_.size(); }
    int32_t                      n_ctx() const { return n_ctx_; }
    int32_t                      n_draft_past() const;
    const char *                 disabled_reason() const;
    const char *                 match_reason() const { return match_reason_; }
    bool                         is_exact() const { return target_.is_exact(); }
    const char *                 source_name() const { return target_.source_name(); }
    const dspark_stats &         stats() const { return stats_; }
    void                         reset_stats();
    int32_t                      pending() const { return pending_; }
    bool                         auto_depth() const { return params_.auto_depth; }
    void                         set_auto_depth(bool on) { params_.auto_depth = on; }
    // What the automatic length is chosen from; null without a draft.
    const depth_control *        depth() const { return depth_.get(); }
    bool                         has_round() const { return has_round_; }
    int32_t                      logits_row() const { return logits_row_; }

    struct round_view {
        int32_t                    position;
        int32_t                    anchor;
        int32_t                    n_sampled;
        const verification &       result;
        const std::vector<float> & confidence_logits;
    };
    // Throws DSPARK_ERROR_STATE before the first round.
    round_view last_round() const;

  private:
    void    require_untouched();
    void    forget_round();
    int32_t draft_limit(int32_t n_draft_max) const;
    void    start_round(llama_sampler * sampler, int32_t n_draft_max);
    void    close_round(bool is_complete = false);
    void    propose(llama_sampler * sampler, int32_t limit, proposal & drafted);
    const char * why_match(llama_sampler * sampler) const;
    int32_t sample(llama_sampler * sampler);
    int32_t sample_by_rejection(llama_sampler * sampler, const float * logits);
    void    decode(const int32_t * tokens, int32_t n, int32_t first_logits, std::vector<float> & features);
    void    remove_target_tail();
    void    drop_stale_tail();
    void    decode_again();
    void    owe_drafter(const std::vector<float> & features, int32_t n_rows);
    void    pay_drafter();
    template <typename F> bool draft_does(F && body);
    void    forget_owed(int32_t n_rows);

    ownership                owned_;
    std::unique_ptr<drafter> draft_;
    std::unique_ptr<depth_control> depth_; // null without a draft
    const char *             disabled_reason_; // why it never drafts, null: it may
    const char *             draft_failure_ = nullptr; // why it does not draft on this sequence any more
    target                   target_;
    params                   params_;
    int32_t                  n_ctx_ = 0;

    std::vector<int32_t> tokens_;
    int32_t              pending_    = -1;
    int32_t              logits_row_ = -1; // of the target's last batch, to sample the next token from; -1: none
    bool                 tail_stale_ = false; // the target still holds rows of an append that failed
    bool                 is_lost_    = false; // the target's memory is empty after a batch that failed; the next call decodes again

    bool               round_open_ = false;
    bool               has_round_  = false; // round_* describe the last one, open or closed
    int32_t            round_pos_  = 0;     // of the anchor
    int32_t            round_anchor_ = 0;
    int32_t            round_sampled_ = 0;
    verification       round_;
    std::vector<float> round_confidence_; // logits
    std::vector<float> round_features_;   // [1 + n_drafted][m*H]
    bool               round_is_drawn_ = false; // its drafts were drawn: rejection sampling can decide about them
    bool               round_is_auto_ = false; // its length was chosen by depth_, which wants to know how it ends
    depth_control::round round_costs_ = {};

    std::vector<float> owed_features_; // [n_owed_][m*H]
    int32_t            n_owed_ = 0;

    // of rejection sampling
    const char *                  match_reason_ = nullptr; // why the last token was not sampled by it although it was asked for
    drawing                       drawing_;
    std::vector<llama_token_data> candidates_;             // [n_vocab]
    distribution                  p_, q_;                  // of the target and of the draft

    dspark_stats stats_ = {};
};

} // namespace dspark
