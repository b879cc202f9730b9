// Which drafted tokens stand.  Plain ids and floats; knows neither ggml nor llama.cpp.
#pragma once

#include <cstdint>
#include <vector>

namespace dspark {

// Index of the largest of n values, the lowest on ties.  The first index if none is larger than -inf.
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

} // namespace dspark
