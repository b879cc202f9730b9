// How many drafted tokens are worth verifying.  Plain floats; knows neither ggml nor llama.cpp.
#pragma once

#include <cstddef>
#include <vector>

namespace dspark {

// Tokens before the first whose confidence, the sigmoid of its logit, is below min (DeepSpec's confidence_threshold).
// min = 0 keeps all.
std::size_t depth_by_confidence(const std::vector<float> & confidence_logits, float min);

} // namespace dspark
