// What a round costs on this machine, learned from the rounds of a session.  Plain numbers; knows neither ggml nor llama.cpp.
//
// T(n), the time of a target batch of n rows, and the time of a proposal are modelled as
//     log time = speed of the machine now + log(shape of the curve at n + change) + noise
// where `change` counts only for a batch of another size than the one before it, for which llama.cpp builds its graph anew (0.5 ms, a tenth
// of a token of a model of 135M weights).  All are tracked by a Kalman filter: the speed moves fast (another process comes or goes, and every n is
// slower or faster at once), the shape slowly, the change hardly.  So the ratios, which alone decide, survive a busy machine.  A time that
// is far off does not count, unless it comes again: three in a row are the machine, three or four in a row at the
// same n with others as expected between them are the curve.  The first time of every n, in which memory is touched and graphs
// are built, is not taken.  What was not measured lately is doubted more and more.
//
// Attention makes the curve steeper with the context, so there is one shape for each doubling of its length; a new one
// starts as a doubted copy of the nearest.
#pragma once

#include <cstdint>
#include <vector>

namespace dspark {

class cost_model {
  public:
    // n_rows_max: the largest batch of a round, 1 + the longest proposal.
    explicit cost_model(int32_t n_rows_max);

    // Time that a batch of n_rows, or a proposal, took at a context of so many tokens.  changed: the batch before had another size.
    void measure_rows(int32_t n_rows, int32_t context, double seconds, bool changed = false);
    void measure_draft(int32_t context, double seconds) { measure(0, context, seconds, false); }

    // Estimates in seconds; those of batch sizes that were not measured lie on a line through their neighbours.  They are not forced
    // to rise with n: kernels exist to which 8 rows are cheaper than 7.
    double rows(int32_t n_rows, int32_t context, bool changed = false) const { return seconds(n_rows, context) + (changed ? change() : 0); }
    double draft(int32_t context) const { return seconds(0, context); }

    // What a batch of another size than the one before it takes longer.
    double change() const;

    // rows(), unchanged, as it would be if the doubt about it were resolved in its favour, by one standard deviation.
    double rows_at_best(int32_t n_rows, int32_t context) const;

    // Whether the speed was found to be another since one row was measured.  A proposal or batch that is dearer than it was guessed looks like
    // a slower machine, on which all else would be dearer too.
    bool is_speed_doubtful() const { return speed_is_doubtful_; }

    // Measurements of n_rows at contexts of about this length, those that a copied shape brought along included.
    int32_t n_measured(int32_t n_rows, int32_t context) const;

  private:
    struct estimate {
        double  shape    = 0; // log of a ratio to the speed
        double  variance = 0;
        int32_t n_seen   = 0; // the first is not taken
        int32_t far_off  = 0; // sign, if the last was
    };
    using curve = std::vector<estimate>; // [0] the proposal, [n] n rows

    void     measure(int32_t i, int32_t context, double seconds, bool changed);
    double   seconds(int32_t i, int32_t context) const;
    estimate guess(const curve & c, int32_t i) const;
    const curve & nearest(int32_t context) const;

    std::vector<curve> curves_; // by doubling of the context, empty: not visited
    curve              prior_;
    double             speed_          = 0;
    double             speed_variance_ = 0;
    double             change_;             // as a ratio to the speed
    double             change_variance_;
    double             noise_;              // variance of a measurement
    int32_t            far_off_        = 0; // the same, whatever they were of
    bool               has_speed_      = false;
    bool               speed_is_doubtful_ = false;
};

} // namespace dspark
