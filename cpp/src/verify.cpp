#include "verify.h"

#include <algorithm>
#include <cstddef>

namespace dspark {

// Only a block that raises the maximum is searched for its place.  Lanes, since a compiler may not reorder comparisons that a NaN decides.
int32_t argmax(const float * values, int32_t n) {
    constexpr int32_t n_lanes = 16, block = 256;
    float             best    = values[0];
    int32_t           best_at = 0;
    for (int32_t i = 0; i < n; i += block) {
        const int32_t end  = std::min(i + block, n);
        const int32_t even = i + (end - i) / n_lanes * n_lanes;
        float         lanes[n_lanes];
        std::fill(lanes, lanes + n_lanes, best);
        for (int32_t j = i; j < even; j += n_lanes) {
            for (int32_t lane = 0; lane < n_lanes; ++lane) {
                lanes[lane] = values[j + lane] > lanes[lane] ? values[j + lane] : lanes[lane];
            }
        }
        float top = best;
        for (float x : lanes) {
            top = x > top ? x : top;
        }
        for (int32_t j = even; j < end; ++j) {
            top = values[j] > top ? values[j] : top;
        }
        if (top > best) {
            best = top;
            for (best_at = i; values[best_at] != top; ++best_at) {
            }
        }
    }
    return best_at;
}

bool verification::accept(int32_t token) {
    if (n_accepted_ < n_drafted() && drafted_[(std::size_t) n_accepted_] == token) {
        ++n_accepted_;
        return true;
    }
    return false;
}

namespace {

// The entry of a token, or end().
template <typename D> auto find(D & d, int32_t id) {
    const auto at = std::lower_bound(d.begin(), d.end(), id, [](const token_prob & t, int32_t wanted) { return t.id < wanted; });
    return at != d.end() && at->id == id ? at : d.end();
}

} // namespace

float probability(const distribution & d, int32_t id) {
    const auto at = find(d, id);
    return at == d.end() ? 0.0f : at->p;
}

int32_t draw(const distribution & d, double u) {
    double total = 0;
    for (const token_prob & t : d) {
        total += (double) t.p;
    }
    // strictly more: a token without probability never adds what is missing
    double  sum  = 0;
    int32_t last = d.front().id;
    for (const token_prob & t : d) {
        sum += (double) t.p;
        if (sum > u * total) {
            return t.id;
        }
        last = t.p > 0 ? t.id : last;
    }
    return last;
}

double overlap(const distribution & p, const distribution & q) {
    double sum = 0;
    for (const token_prob & t : q) {
        sum += (double) std::min(probability(p, t.id), t.p);
    }
    return sum;
}

bool stands(const distribution & p, const distribution & q, int32_t drafted, double u) {
    return u * (double) probability(q, drafted) < (double) probability(p, drafted);
}

void take_residual(distribution & p, const distribution & q) {
    const double kept = 1 - overlap(p, q);
    if (kept < 1e-6) {
        return;
    }
    for (const token_prob & t : q) {
        const auto at = find(p, t.id);
        if (at != p.end()) {
            at->p = std::max(at->p - t.p, 0.0f);
        }
    }
    for (token_prob & t : p) {
        t.p = (float) ((double) t.p / kept);
    }
}

} // namespace dspark
