// The likeliest tokens of a distribution.
#pragma once

#include <cstdint>
#include <vector>

namespace dspark {

// The k largest of n logits, largest first (the lower id first among equal ones), and their softmax over all n.
// Throws DSPARK_ERROR_BACKEND if the largest logit or the sum is not finite.  1 <= k <= n.
void top_k(const float * logits, int32_t n, int32_t k, int32_t * out_ids, float * out_probs);

} // namespace dspark
