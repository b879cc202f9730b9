#include "verify.h"

#include <cstddef>

namespace dspark {

int32_t argmax(const float * values, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; ++i) {
        if (values[i] > values[best]) {
            best = i;
        }
    }
    return best;
}

bool verification::accept(int32_t token) {
    if (n_accepted_ < n_drafted() && drafted_[(std::size_t) n_accepted_] == token) {
        ++n_accepted_;
        return true;
    }
    return false;
}

} // namespace dspark
