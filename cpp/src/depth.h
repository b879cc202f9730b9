// How many drafted tokens are worth verifying.  Plain floats; knows neither ggml nor llama.cpp.
//
// The unit is the token: time is divided by T(1), the time in which plain decoding writes one, or by a larger batch's if that was measured to
// be shorter: one row takes no longer than several, so the last T(1) was of a stalled machine, on which any draft would seem to pay.
//
// depth    After each proposal: the k that maximises E(k) - worth * T(1 + k), with E(k) = 1 + a_1 + a_1 a_2 + ... + a_1 .. a_k the
//          tokens that a round with k drafts gives (a_i from survival) and `worth` the tokens that the same time gives
//          elsewhere, which is the pace of late.  A batch of another size than the last costs the change.  The proposal itself is paid for already.
// account  Whether to propose at all.  Drafting has an account: a drafted round pays in the tokens that it gave and takes out what its
//          time would have given plainly, proposal included; one token in a hundred is paid in besides.  Where nothing is left,
//          drafting pauses until that hundredth has paid in two tokens, and then tries again from what it knew at first.  (With
//          less, chance decides: a round gives one token or three, and a draft that pays is given up after an unlucky one.)
//          So drafting loses about one in a hundred and three tokens once. Where draws and times are far from what is guessed at first
//          there is more to learn: six in a hundred, three tokens and two and a half of the dearest rounds are more than any of the 600
//          made-up worlds of tests/cpp/test_depth_control.cpp takes.  Taking the features of paused rounds is in nobody's account.
//          All hangs on T(1), so it is measured again after 8, 16, 32, 64, 128, 128 ... drafted rounds, and whenever the machine seems to be another: by two
//          plain rounds, since the first one takes longer because of the batch before it (by 10 to 15 %, where other changes take 5).
//
// Under sample-and-match the choice may depend on anything.  Under rejection sampling a draft must be decided on without a look at it,
// and a later confidence is one: it depends on the tokens before it.  There the search stops at the first draft that does not pay.
#pragma once

#include "cost_model.h"
#include "survival.h"

namespace dspark {

// Tokens before the first whose confidence, the sigmoid of its logit, is below min (DeepSpec's confidence_threshold).
// min = 0 keeps all.
std::size_t depth_by_confidence(const std::vector<float> & confidence_logits, float min);

class depth_control {
  public:
    // n_draft_max: the longest proposal.
    explicit depth_control(int32_t n_draft_max);

    // True if the next round is worth a proposal.  False: it is plain, because drafting is paused or T(1) has to be measured.
    bool wants_proposal(int32_t context) const;
    bool paused() const { return paused_; }

    // How many of n drafts to verify; confidence_logits is [n] or empty.  n_rows_before: of the target's last batch.
    // in_order: stops at the first that does not pay.
    int32_t choose(int32_t n, const std::vector<float> & confidence_logits, int32_t context, int32_t n_rows_before, bool in_order = false);

    // Draft i of the round stood, and all before it, or was the first that did not.
    void observe(int32_t i, const std::vector<float> & confidence_logits, bool stood);

    // What a round was.
    struct round {
        int32_t context;       // tokens before it
        int32_t n_rows_before; // of the target's batch before it
        int32_t n_rows;        // of its own
        double  target_s;      // seconds of the batch, and of taking back what did not stand
        bool    has_proposal;  // the drafter was asked
        double  draft_s;       // seconds of that
        int32_t n_emitted;     // tokens that came of it
    };
    void close_round(const round & r);

    int32_t            n_draft_max() const { return n_draft_max_; }
    const cost_model & costs() const { return costs_; }
    const survival &   survivals() const { return survival_; }
    double             account() const { return account_; }

  private:
    void   forget();
    double token_time(int32_t context) const; // of plain decoding


    int32_t    n_draft_max_;
    cost_model costs_;
    survival   survival_;
    double     account_;
    double     tokens_, time_;       // fading sums over the drafted rounds: their quotient is the pace
    int32_t    plain_wait_;          // rounds after which T(1) is measured again
    int32_t    n_since_plain_ = 0;   // rounds since it was
    bool       paused_        = false;
    bool       was_paused_    = false; // and nothing was tried since
};

} // namespace dspark
