// How likely a drafted token is to stand, learned from those that did.  Plain floats; knows neither ggml nor llama.cpp.
//
// Draft i (0 first) was promised to stand with some probability if all before it do: by the confidence head, or 1 where there is
// none.  What stood over what was promised, of late and slot by slot, corrects the next promise.  A slot that was seldom
// seen takes after the one before it; the first takes after a guess: a head is right, and without one three drafts in five stand.
#pragma once

#include <cstddef>
#include <vector>

namespace dspark {

class survival {
  public:
    // n_max: longest proposal.
    survival(std::size_t n_max, bool has_confidence);

    // P(draft i stands | those before it do), 0 to 1.  confidence is the head's, ignored without one.
    float estimate(std::size_t i, float confidence) const;

    // Draft i, before which all stood, stood or not.
    void observe(std::size_t i, float confidence, bool stood);

    bool has_confidence() const { return has_confidence_; }

  private:
    bool               has_confidence_;
    std::vector<float> promised_; // fading sums by slot
    std::vector<float> stood_;
};

} // namespace dspark
