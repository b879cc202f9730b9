// Which drafted tokens stand.  Plain ids and floats; knows neither ggml nor llama.cpp.
//
// A session samples a token from the row that `verification` names, and gives it back; how it samples is one of two rules: as if there were no
// draft (sample-and-match), or with the draft's help (rejection sampling, below).
#pragma once

#include <cstdint>
#include <vector>

namespace dspark {

// Index of the largest of n >= 1 values, the lowest on ties.  As in llama.cpp's greedy sampler a NaN is passed over, and one in front is kept.
// The first index if none is larger than -inf.
int32_t argmax(const float * values, int32_t n);

// One verified block under sample-and-match: row i of the target's batch gives the distribution of the token after the
// anchor and i drafts.  Whatever is sampled from a row is emitted; while it equals the draft of that place, the next row is
// valid too.  Every emitted token is thus the target's own choice, for any draft and any sampler.
class verification {
  public:
    verification() = default;
    explicit verification(std::vector<int32_t> drafted) : drafted_(std::move(drafted)) {}

    // The row to sample from next.
    int32_t row() const { return n_accepted_; }

    // True if token, sampled from row(), is the draft of its place; row() then moves on.
    bool accept(int32_t token);

    int32_t                      n_accepted() const { return n_accepted_; }
    int32_t                      n_drafted() const { return (int32_t) drafted_.size(); }
    const std::vector<int32_t> & drafted() const { return drafted_; }

  private:
    std::vector<int32_t> drafted_;
    int32_t              n_accepted_ = 0;
};

// --- rejection sampling ---------------------------------------------------------------------------------------------
//
// A draft x that was drawn from q takes the place of a draw from p with probability min(1, p(x) / q(x)); else the token is drawn from
// max(p - q, 0), normalised.  Either way it is distributed as p (Leviathan et al. 2023, Chen et al. 2023).  The draft stands with
// probability sum min(p, q), where sample-and-match lets it with sum p q.  Whether a draft is tried at all must not depend on it or on
// what comes after it.

// A token and its probability.
struct token_prob {
    int32_t id;
    float   p;
};

// Ids ascend, probabilities sum to 1; a token that is left out has none.
using distribution = std::vector<token_prob>;

float probability(const distribution & d, int32_t id);

// The token at which the running sum of the probabilities exceeds u, 0 <= u < 1.
int32_t draw(const distribution & d, double u);

// sum min(p, q), by which drafts of q stand under p.
double overlap(const distribution & p, const distribution & q);

// True if drafted, drawn from q, stands for a draw from p; 0 <= u < 1 was drawn uniformly.
bool stands(const distribution & p, const distribution & q, int32_t drafted, double u);

// p becomes max(p - q, 0) / sum.  Where that is nothing but rounding p is kept: q is then the same.
void take_residual(distribution & p, const distribution & q);

} // namespace dspark
