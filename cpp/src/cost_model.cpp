#include "cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>

namespace dspark {

namespace {

// Variances of logs: 0.01 is a standard deviation of 10 %.
constexpr double noise_min    = 0.005;  // of one measurement, to begin with and at least
constexpr double noise_memory = 1.0 / 32;
constexpr double speed_drift  = 0.002;  // of the machine's speed, for each measurement
constexpr double shape_drift  = 0.0002; // of a shape, for each measurement of any other
constexpr double copy_doubt   = 0.02;   // of a shape taken from another length of context
constexpr double guess_doubt  = 0.06;   // of a shape never measured
constexpr double doubt_max    = 0.25;
constexpr double surprise_max = 2.5;    // standard deviations; more is far off

// Times far off to the same side, one after another, until they are believed.  Where another guest takes the processor for a while every
// fifth batch may be, and two in a row is chance.
constexpr int32_t far_off_machine = 3; // whatever they are of
constexpr int32_t far_off_curve   = 4; // of the same entry,
constexpr int32_t far_off_new     = 3; // and of one measured few times
constexpr int32_t few             = 3;

// Before anything is known: every further row, and a proposal, costs a fifth of the first row.
constexpr double row_cost   = 0.2;
constexpr double draft_cost = 0.2;

constexpr double change_cost  = 0.07;    // of another batch size, in first rows: as measured where a row takes 6 ms
constexpr double change_doubt = 0.0025;
constexpr double change_drift = 0.00001; // for each measurement

int32_t doubling(int32_t context) {
    int32_t i = 0;
    for (context /= 512; context > 0; context /= 2) {
        ++i;
    }
    return i;
}

} // namespace

cost_model::cost_model(int32_t n_rows_max) : curves_(24), prior_((size_t) n_rows_max + 1), change_(change_cost), change_variance_(change_doubt), noise_(noise_min) {
    prior_[0].shape = std::log(draft_cost);
    for (size_t n = 1; n < prior_.size(); ++n) {
        prior_[n].shape = std::log(1 + row_cost * (double) (n - 1));
    }
}

const cost_model::curve & cost_model::nearest(int32_t context) const {
    const int32_t at = doubling(context);
    for (int32_t distance = 0; distance < (int32_t) curves_.size(); ++distance) {
        for (int32_t i : {at - distance, at + distance}) {
            if (i >= 0 && i < (int32_t) curves_.size() && !curves_[(size_t) i].empty()) {
                return curves_[(size_t) i];
            }
        }
    }
    return prior_;
}

// The estimate of an entry; one never measured lies on the line through the measured ones around it, in times, not logs.
cost_model::estimate cost_model::guess(const curve & c, int32_t i) const {
    estimate e = c[(size_t) i];
    if (e.n_seen > 1) {
        return e;
    }
    e.shape    = prior_[(size_t) i].shape;
    e.variance = guess_doubt;
    int32_t below = 0, above = 0, before = 0; // measured: the nearest two below i, and the nearest above; 0: none
    for (int32_t n = 1; i > 0 && n < (int32_t) c.size() && above == 0; ++n) {
        if (c[(size_t) n].n_seen > 1) {
            if (n > i) {
                above = n;
            } else {
                before = below;
                below  = n;
            }
        }
    }
    auto time  = [&](int32_t n) { return std::exp(c[(size_t) n].shape); };
    auto slope = [&](int32_t from, int32_t to) { return (time(to) - time(from)) / (to - from); };
    if (below > 0 && above > 0) {
        e.shape = std::log(time(below) + slope(below, above) * (i - below));
    } else if (below > 0 && before > 0) {
        e.shape = std::log(time(below) + std::max(0.0, slope(before, below)) * (i - below));
    } else if (below > 0 || above > 0) {
        const int32_t n = below > 0 ? below : above;
        e.shape += c[(size_t) n].shape - prior_[(size_t) n].shape;
    }
    return e;
}

void cost_model::measure_rows(int32_t n_rows, int32_t context, double seconds, bool changed) {
    if (n_rows >= 1 && n_rows < (int32_t) prior_.size()) {
        measure(n_rows, context, seconds, changed);
    }
}

void cost_model::measure(int32_t i, int32_t context, double seconds, bool changed) {
    if (!(seconds > 0) || !std::isfinite(seconds)) {
        return;
    }
    curve & c = curves_[(size_t) doubling(context)];
    if (c.empty()) {
        curve copied = nearest(context);
        for (estimate & e : copied) {
            e.variance += copy_doubt;
        }
        c = std::move(copied);
    }
    const double seen = std::log(seconds);
    estimate     e    = guess(c, i);
    if (!has_speed_) {
        has_speed_      = true;
        speed_          = seen - std::log(std::exp(e.shape) + (changed ? change_ : 0));
        speed_variance_ = guess_doubt;
    }
    for (estimate & other : c) {
        other.variance = std::min(other.variance + shape_drift, doubt_max);
    }
    e.variance      = std::min(e.variance + shape_drift, doubt_max);
    speed_variance_ = std::min(speed_variance_ + speed_drift, doubt_max);

    change_variance_ = std::min(change_variance_ + change_drift, change_doubt);

    // log(shape + change): how it moves with the log of the shape, and with the change
    const double shape     = std::exp(e.shape);
    const double ratio     = shape + (changed ? change_ : 0);
    const double by_shape  = shape / ratio;
    const double by_change = changed ? 1 / ratio : 0;
    const double variance  = speed_variance_ + by_shape * by_shape * e.variance + by_change * by_change * change_variance_ + noise_;
    const double limit     = surprise_max * std::sqrt(variance);
    const double surprise  = seen - speed_ - std::log(ratio);
    const int    far_off  = surprise > limit ? 1 : surprise < -limit ? -1 : 0;
    auto         in_a_row = [&](int32_t before) { return far_off * before > 0 ? before + far_off : far_off; };
    const int32_t of_machine = in_a_row(far_off_), of_entry = in_a_row(e.far_off);
    const bool   is_first = e.n_seen == 0;
    bool         is_resolved = false;
    if (!is_first && std::abs(of_machine) == far_off_machine) {
        speed_ += surprise;
        speed_is_doubtful_ = i != 1;
        is_resolved        = true;
        for (estimate & other : c) {
            other.far_off = 0;
        }
    } else if (std::abs(of_entry) >= (e.n_seen <= few ? far_off_new : far_off_curve)) {
        e.shape += surprise;
        speed_is_doubtful_ = speed_is_doubtful_ && i != 1;
        is_resolved        = true;
    } else if (!is_first && far_off == 0) {
        speed_is_doubtful_ = speed_is_doubtful_ && i != 1;
        speed_ += surprise * speed_variance_ / variance;
        e.shape += surprise * by_shape * e.variance / variance;
        change_ = std::max(0.0, change_ + surprise * by_change * change_variance_ / variance);
        noise_ = std::max(noise_min, noise_ + noise_memory * (surprise * surprise * noise_ / variance - noise_));
        speed_variance_ *= 1 - speed_variance_ / variance;
        e.variance *= 1 - by_shape * by_shape * e.variance / variance;
        change_variance_ *= 1 - by_change * by_change * change_variance_ / variance;
    }
    e.far_off = is_resolved ? 0 : of_entry;
    far_off_  = is_first || is_resolved ? 0 : of_machine;
    e.n_seen = std::min(e.n_seen + 1, 1 << 20);
    if (is_first) { // what was guessed stays a guess
        e.shape    = c[(size_t) i].shape;
        e.variance = c[(size_t) i].variance;
    }
    c[(size_t) i] = e;
}

double cost_model::seconds(int32_t i, int32_t context) const {
    return std::exp(speed_ + guess(nearest(context), i).shape);
}

double cost_model::change() const {
    return std::exp(speed_) * change_;
}

double cost_model::rows_at_best(int32_t n_rows, int32_t context) const {
    const estimate e = guess(nearest(context), n_rows);
    return std::exp(speed_ + e.shape - std::sqrt(e.variance));
}

int32_t cost_model::n_measured(int32_t n_rows, int32_t context) const {
    return std::max(0, nearest(context)[(size_t) n_rows].n_seen - 1);
}

} // namespace dspark
