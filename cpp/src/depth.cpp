#include "depth.h"

#include <cmath>

namespace dspark {

std::size_t depth_by_confidence(const std::vector<float> & confidence_logits, float min) {
    std::size_t n = 0;
    while (n < confidence_logits.size() && !(1.0f / (1.0f + std::exp(-confidence_logits[n])) < min)) {
        ++n;
    }
    return n;
}

} // namespace dspark
