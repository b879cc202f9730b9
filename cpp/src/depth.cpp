#include "depth.h"

#include <algorithm>
#include <cmath>

namespace dspark {

namespace {

// In tokens of plain decoding.
constexpr double account_start = 3;    // what a useless draft may cost before anything is known
constexpr double account_retry = 2;    // and after a pause
constexpr double account_max   = 8;    // what may be lost again of what was won
constexpr double income        = 0.01; // for each token's time

constexpr int32_t plain_first   = 8;    // drafted rounds until T(1), to which all is compared, is measured again; then twice as many ...
constexpr int32_t plain_every   = 128;  // and at most so many
constexpr double  pace_memory   = 1 - 1.0 / 32;
constexpr double  pace_tokens   = 4;    // tokens that the first guess of the pace, that of plain decoding, counts for

float sigmoid(float x) {
    return 1.0f / (1.0f + std::exp(-x));
}

} // namespace

std::size_t depth_by_confidence(const std::vector<float> & confidence_logits, float min) {
    std::size_t n = 0;
    while (n < confidence_logits.size() && !(sigmoid(confidence_logits[n]) < min)) {
        ++n;
    }
    return n;
}

depth_control::depth_control(int32_t n_draft_max)
    : n_draft_max_(n_draft_max), costs_(1 + n_draft_max), survival_((std::size_t) n_draft_max, false), account_(account_start), plain_wait_(plain_first) {
    forget();
}

void depth_control::forget() {
    survival_ = survival((std::size_t) n_draft_max_, survival_.has_confidence());
    tokens_ = time_ = pace_tokens;
}

bool depth_control::wants_proposal(int32_t context) const {
    const bool measure_plain = costs_.n_measured(1, context) == 0 || costs_.is_speed_doubtful() || n_since_plain_ >= plain_wait_;
    return !paused() && !measure_plain;
}

double depth_control::token_time(int32_t context) const {
    double least = costs_.rows(1, context);
    for (int32_t n = 2; n <= 1 + n_draft_max_; ++n) {
        if (costs_.n_measured(n, context) > 0) {
            least = std::min(least, costs_.rows(n, context));
        }
    }
    return least;
}

int32_t depth_control::choose(int32_t n, const std::vector<float> & confidence_logits, int32_t context, int32_t n_rows_before,
                              bool in_order) {
    if (n < 1) {
        return 0;
    }
    if (survival_.has_confidence() == confidence_logits.empty()) {
        survival_ = survival((std::size_t) n_draft_max_, !confidence_logits.empty());
    }
    const double plain = token_time(context);
    const double worth = std::max(1.0, tokens_ / time_);
    auto price = [&](int32_t n_rows) {
        return worth * (costs_.rows_at_best(n_rows, context) + (n_rows != n_rows_before ? costs_.change() : 0)) / plain;
    };

    // after a pause something has to be tried: a proposal that nothing is taken of teaches nothing
    int32_t best       = 0;
    double  best_value = was_paused_ ? -INFINITY : 1 - price(1);
    double  expected   = 1;
    double  prefix     = 1;
    for (int32_t k = 1; k <= n; ++k) {
        const std::size_t i = (std::size_t) (k - 1);
        prefix *= survival_.estimate(i, confidence_logits.empty() ? 1.0f : sigmoid(confidence_logits[i]));
        expected += prefix;
        const double value = expected - price(1 + k);
        if (value > best_value) {
            best       = k;
            best_value = value;
        } else if (in_order) {
            break;
        }
    }
    return best;
}

void depth_control::observe(int32_t i, const std::vector<float> & confidence_logits, bool stood) {
    survival_.observe((std::size_t) i, confidence_logits.empty() ? 1.0f : sigmoid(confidence_logits[(std::size_t) i]), stood);
}

void depth_control::close_round(const round & r) {
    const bool changed = r.n_rows != r.n_rows_before;
    // a plain batch after a drafted one takes longer because of that one, by more than other changes
    const bool is_disturbed = r.n_rows == 1 && r.n_rows_before > 1 && r.n_rows_before <= 1 + n_draft_max_;
    if (!is_disturbed) {
        costs_.measure_rows(r.n_rows, r.context, r.target_s, changed);
    }
    if (r.n_rows > 1) {
        ++n_since_plain_;
    } else if (!is_disturbed) {
        plain_wait_    = n_since_plain_ >= plain_wait_ ? std::min(2 * plain_wait_, plain_every) : plain_wait_;
        n_since_plain_ = 0;
    }
    if (r.has_proposal) {
        costs_.measure_draft(r.context, r.draft_s);
    }
    // as modelled: what a stall of the machine takes is no fault of the draft
    const double time = (costs_.rows(r.n_rows, r.context, changed) + (r.has_proposal ? costs_.draft(r.context) : 0)) / token_time(r.context);
    account_ += income * time;
    if (r.has_proposal || is_disturbed) {
        account_ += r.n_emitted - time;
        tokens_ = pace_memory * tokens_ + r.n_emitted;
        time_   = pace_memory * time_ + time;
    }
    account_ = std::min(account_, account_max);
    if (paused_) {
        paused_     = account_ < account_retry;
        was_paused_ = !paused_;
    } else if (account_ <= 0) {
        paused_ = true;
        forget();
    } else if (r.has_proposal) {
        was_paused_ = false;
    }
}

} // namespace dspark
