// Draft lengths chosen from measured costs, on a machine that is made up: its clock is a number.
//
// Stands for: drafting that costs more than it gives (useless, expensive, on a machine where verification is dear, where llama.cpp builds
// a graph whenever the batch has another size), that goes
// on when text or machine have changed, or that never comes back; a length fixed where the measured slope grows with
// the context; a stall or a first graph build taken for a cost.
#include "depth.h"
#include "test.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

using namespace dspark;

// A machine, a text and a draft, all scripted; time in units of T(1) at an empty context.
struct world {
    std::function<double(int, int)>   rows  = [](int n, int) { return 1 + 0.15 * (n - 1); };       // by rows, context
    double                            draft = 0.3;
    std::function<double(int)>        stands = [](int) { return 0.7; };                            // by round: P(draft i | i - 1)
    bool                              has_confidence = false;
    std::function<float(double, std::mt19937 &)> confidence = [](double p, std::mt19937 &) { return (float) p; };
    double                            noise = 0.1;
    double                            stalls = 0; // share of the times that are two to ten times as long
    std::function<double(int)>        busy = [](int) { return 1.0; };                              // slower by this, by round
    int                               n_max = 7;
    bool                              vary  = false;   // survival differs between rounds: lo or hi, known to the confidence
    double                            lo = 0.1, hi = 0.95, share = 0.5; // of hi
    int                               context = 100;
    double                            change = 0.08; // of a batch of another size than the one before
    double                            after  = 0;    // of one row after several, besides
};

struct outcome {
    double time = 0, tokens = 0, plain_time = 0;
    int    n_rounds = 0, n_proposals = 0;
    std::vector<int> depths;
    double speedup() const { return plain_time / time; }
    double mean_depth() const {
        double sum = 0;
        for (int k : depths) { sum += k; }
        return depths.empty() ? 0 : sum / (double) depths.size();
    }
};

static outcome run(depth_control & control, world & w, int n_tokens, unsigned seed = 1, int fixed = -1) {
    std::mt19937                           rng(seed);
    std::normal_distribution<double>       normal;
    std::uniform_real_distribution<double> uniform;
    outcome                                o;
    int n_before = 200; // the prompt
    auto jitter = [&] {
        const double stall = w.stalls > 0 && uniform(rng) < w.stalls ? 2 * std::pow(5.0, uniform(rng)) : 1;
        return stall * std::exp(w.noise * normal(rng));
    };
    for (; o.tokens < n_tokens; ++o.n_rounds) {
        const int    context = w.context + (int) o.tokens;
        const double busy    = w.busy(o.n_rounds);
        depth_control::round r = {};
        r.context = context;
        std::vector<float> logits;
        int                k = 0;
        double p = w.vary ? (uniform(rng) < w.share ? w.hi : w.lo) : w.stands(o.n_rounds);
        if (fixed > 0 || (fixed < 0 && control.wants_proposal(context))) {
            r.has_proposal = true;
            r.draft_s      = w.draft * busy * jitter();
            for (int i = 0; w.has_confidence && i < w.n_max; ++i) {
                const float c = w.confidence(p, rng);
                logits.push_back(std::log(c / (1 - c)));
            }
            k = fixed > 0 ? fixed : control.choose(w.n_max, logits, context, n_before);
            ++o.n_proposals;
            o.depths.push_back(k);
        }
        int n_stood = 0;
        while (n_stood < k && uniform(rng) < p) {
            control.observe(n_stood++, logits, true);
        }
        if (n_stood < k) {
            control.observe(n_stood, logits, false);
        }
        const double batch = w.rows(1 + k, context) + (1 + k != n_before ? w.change : 0) + (k == 0 && n_before > 1 ? w.after : 0);
        r.n_rows_before    = n_before;
        r.n_rows           = n_before = 1 + k;
        r.target_s         = batch * busy * jitter();
        r.n_emitted = 1 + n_stood;
        if (fixed < 0) { control.close_round(r); }
        o.time += (batch + (r.has_proposal ? w.draft : 0)) * busy;
        o.tokens += r.n_emitted;
        o.plain_time += r.n_emitted * w.rows(1, context) * busy;
    }
    return o;
}

// The worst and the mean speedup against plain decoding over several seeds, each with a control that knows nothing at first.
struct summary {
    double worst = 1e9, mean = 0, depth = 0;
};

static summary over_seeds(world w, int n_tokens) {
    summary   s;
    const int n = 8;
    for (unsigned seed = 1; seed <= n; ++seed) {
        depth_control control(w.n_max);
        const outcome o = run(control, w, n_tokens, seed);
        s.worst         = std::min(s.worst, o.speedup());
        s.mean += o.speedup() / n;
        s.depth += o.mean_depth() / n;
    }
    return s;
}

static double stock_rows(int n, int) { return n == 1 ? 1.0 : 1.2 + 0.45 * (n - 1); } // llama.cpp's own kernels

static double best_fixed(world w) {
    double best = 0;
    for (int k = 1; k <= w.n_max; ++k) {
        depth_control unused(w.n_max);
        best = std::max(best, run(unused, w, 20000, 3, k).speedup());
    }
    return best;
}

static world with_survival(double p) {
    world w;
    w.stands = [p](int) { return p; };
    return w;
}

// cases D2 and D4: 0.17x at an acceptance of 0.68, and below 1 at every depth
static void test_never_slower_than_plain() {
    for (double p : {0.0, 0.3, 0.7}) {
        world w = with_survival(p);
        w.rows  = stock_rows;
        ASSERT(best_fixed(w) < 1);
        ASSERT(over_seeds(w, 20000).worst > 0.97);
        w.draft = 5; // by itself dearer than what it could give
        ASSERT(over_seeds(w, 20000).worst > 0.97);
    }
    ASSERT(over_seeds(with_survival(0), 128).worst > 0.95); // what learning that costs
    ASSERT(over_seeds(with_survival(0), 1000).worst > 0.97);
}

static void test_a_sure_head_on_a_useless_draft_is_not_believed() {
    world w          = with_survival(0);
    w.has_confidence = true;
    w.confidence     = [](double, std::mt19937 &) { return 0.9f; };
    ASSERT(over_seeds(w, 1000).worst > 0.97);
}

static void test_a_good_draft_runs_near_its_best_length() {
    for (double p : {0.7, 0.9}) {
        const world w = with_survival(p);
        ASSERT(over_seeds(w, 5000).mean > 0.94 * best_fixed(w));
    }
    world w = with_survival(0.9);
    w.rows  = stock_rows;
    ASSERT(over_seeds(w, 5000).mean > 0.94 * best_fixed(w));
    ASSERT(over_seeds(w, 5000).depth < over_seeds(with_survival(0.9), 5000).depth); // dearer rows, fewer of them
}

static void test_confidence_beats_every_fixed_length() {
    world w;
    w.vary          = true;
    const double at = best_fixed(w);
    w.has_confidence = true;
    ASSERT(over_seeds(w, 5000).mean > 1.15 * at);
}

// a machine three times slower half of the time is no reason to draft less, or more
static void test_a_machine_that_gets_busy_changes_nothing() {
    world w = with_survival(0.7);
    w.busy  = [](int round) { return round / 50 % 2 ? 3.0 : 1.0; };
    ASSERT(over_seeds(w, 5000).mean > 0.9 * best_fixed(w));
    w = with_survival(0);
    w.busy = [](int round) { return round / 50 % 2 ? 3.0 : 1.0; };
    ASSERT(over_seeds(w, 5000).worst > 0.97);
    // a stall of a hundred times, once in a while
    w      = with_survival(0.9);
    w.busy = [](int round) { return round % 40 == 39 ? 100.0 : 1.0; };
    depth_control control(w.n_max);
    const outcome o = run(control, w, 5000);
    ASSERT(o.n_proposals > 0.9 * o.n_rounds && o.mean_depth() > 4);
}

static void test_drafting_pauses_and_comes_back() {
    world w  = with_survival(0.9);
    w.stands = [](int round) { return round < 300 ? 0.9 : round < 1500 ? 0.0 : 0.9; }; // code, chat, code
    depth_control control(w.n_max);
    outcome       o = run(control, w, 700);
    ASSERT(!control.paused() && o.speedup() > 1.8);
    w.stands = [](int) { return 0.0; };
    o        = run(control, w, 2000);
    ASSERT(o.speedup() > 0.97 && o.n_proposals < o.n_rounds / 10);
    w.stands = [](int) { return 0.9; };
    o        = run(control, w, 2000);
    ASSERT(o.speedup() > 1.5 && !control.paused());
}

// case D8: a fixed length of 7 fell to 0.53x at 32k of context, where 3 gave 1.48x
static void test_the_length_shrinks_where_verification_grows_with_the_context() {
    world w = with_survival(0.9);
    w.rows  = [](int n, int context) { return 1 + (n - 1) * (0.1 + context / 8192.0 * 0.25); };
    depth_control control(w.n_max);
    const outcome near = run(control, w, 1500);
    w.context          = 16384;
    const outcome far  = run(control, w, 1500);
    ASSERT(near.mean_depth() > 4 && far.mean_depth() < 0.75 * near.mean_depth());
    ASSERT(far.speedup() > 0.97);
}

// Another guest of the host takes the processor now and then.  Two such times at one n were taken for the curve, and a draft that gains a third
// was paused for most of the time; one of T(1) made a useless draft seem to gain, which cost up to 0.38.
static void test_stalls_change_little() {
    world good = with_survival(0.58), useless = with_survival(0.02);
    for (world * w : {&good, &useless}) {
        w->rows  = [](int n, int) { return 1 + 0.1 * (n - 1); };
        w->draft = 0.22;
        w->n_max = 6;
        w->noise = 0.06;
        w->has_confidence = true;
        w->confidence     = [](double p, std::mt19937 & r) {
            return (float) (1 / (1 + (1 - p) / p * std::exp(-0.8 - 0.7 * std::normal_distribution<double>()(r))));
        };
    }
    const double undisturbed = over_seeds(good, 1000).mean;
    good.stalls = useless.stalls = 0.2;
    ASSERT(over_seeds(good, 1000).mean > 0.95 * undisturbed);
    ASSERT(over_seeds(useless, 1000).worst > 0.97);
}

// Any pattern, also one that is wrong whenever drafting has just begun to pay.
static void test_no_pattern_of_acceptance_makes_it_slower() {
    for (int period : {2, 8, 64, 512}) {
        world w  = with_survival(0);
        w.stands = [period](int round) { return round % period < period / 2 ? 0.0 : 1.0; };
        ASSERT(over_seeds(w, 5000).worst > 0.97);
    }
}

// What depth.h promises, in worlds of every kind: three tokens and one in a hundred, the round in which it is found out that they are gone
// and the next trial's, and, where changes and draws cost far from what is guessed at first, one in twenty for what is still to be learned.
// A dear draft, or a change of the batch size, was taken for a slower machine, on which plain decoding would be as slow, and cost 0.23x.
static void test_what_may_be_lost_is_bounded_in_any_world() {
    std::mt19937                           rng(7);
    std::uniform_real_distribution<double> uniform;
    auto between = [&](double lo, double hi) { return lo * std::pow(hi / lo, uniform(rng)); };
    for (int i = 0; i < 600; ++i) {
        world        w;
        const double first = between(0.01, 0.5), further = between(0.03, 1), growth = uniform(rng) < 0.5 ? 0 : between(1e-5, 1e-4);
        w.rows             = [=](int n, int context) { return (1 + 5 * growth * context) + (n > 1 ? first + (n - 1) * (further + growth * context) : 0); };
        w.n_max            = 1 + (int) (15 * uniform(rng));
        w.draft            = between(0.02, 3);
        w.change           = between(0.005, 0.5);
        w.noise            = between(0.01, 0.15);
        w.context          = (int) between(10, 8000);
        w.vary             = true;
        w.lo               = uniform(rng) < 0.4 ? 0.001 : between(0.01, 0.9);
        w.hi               = std::min(0.98, w.lo * between(1, 10));
        w.share            = uniform(rng);
        w.has_confidence   = uniform(rng) < 0.7;
        const double bias  = 3 * (uniform(rng) - 0.5), doubt = uniform(rng);
        w.confidence       = [=](double p, std::mt19937 & r) {
            return (float) (1 / (1 + (1 - p) / p * std::exp(-bias - doubt * std::normal_distribution<double>()(r))));
        };
        const int     n_tokens = (int) between(16, 2000);
        depth_control control(w.n_max);
        const outcome o       = run(control, w, n_tokens, (unsigned) i);
        const double  token   = o.plain_time / o.tokens;
        const double  dearest = (w.rows(1 + w.n_max, w.context + n_tokens) + w.draft + 2 * w.change) / token;
        const double  lost    = (o.time - o.plain_time) / token;
        ASSERT(lost < 3 + 0.06 * o.tokens + 2.5 * dearest);
    }
}

static void test_survival() {
    survival without(3, false), with(3, true);
    ASSERT(std::fabs(without.estimate(0, 0.1f) - 0.6f) < 1e-6f && without.estimate(2, 0.1f) == without.estimate(0, 0.9f));
    ASSERT(with.estimate(0, 0.8f) == 0.8f);
    for (int i = 0; i < 100; ++i) {
        with.observe(0, 0.8f, i % 2 == 0);
        without.observe(0, 0.8f, i % 4 == 0);
    }
    ASSERT(std::fabs(with.estimate(0, 0.8f) - 0.5f) < 0.06f);    // a promise of 0.8 that was kept half of the time
    ASSERT(std::fabs(without.estimate(0, 1.0f) - 0.25f) < 0.06f);
    ASSERT(without.estimate(2, 1.0f) == without.estimate(0, 1.0f)); // never seen: as the slot before
    without.observe(9, 1.0f, true);                                   // behind the last slot: ignored
}

static void test_costs() {
    cost_model costs(8);
    costs.measure_rows(1, 100, 50.0); // the first, with warm-up, is not taken
    for (int i = 0; i < 20; ++i) {
        costs.measure_rows(1, 100, 1.0);
        costs.measure_rows(4, 100, 2.0);
        costs.measure_draft(100, 0.5);
    }
    ASSERT(std::fabs(costs.rows(4, 100) / costs.rows(1, 100) - 2.0) < 0.1);
    ASSERT(std::fabs(costs.draft(100) / costs.rows(1, 100) - 0.5) < 0.03);
    ASSERT(costs.rows(2, 100) > costs.rows(1, 100) && costs.rows(3, 100) < costs.rows(4, 100) && costs.rows(8, 100) > costs.rows(4, 100));
    ASSERT(costs.n_measured(4, 100) == 19 && costs.n_measured(2, 100) == 0);
    const double before = costs.rows(4, 100) / costs.rows(1, 100);
    costs.measure_rows(4, 100, 200.0); // one stall
    ASSERT(costs.rows(4, 100) / costs.rows(1, 100) < 1.4 * before);
    for (double bad : {0.0, -1.0, (double) NAN, (double) INFINITY}) {
        costs.measure_rows(1, 100, bad);
    }
    costs.measure_rows(0, 100, 1.0);
    costs.measure_rows(99, 100, 1.0);
    ASSERT(std::isfinite(costs.rows(8, 1 << 30)));
    for (int i = 0; i < 200; ++i) {
        ASSERT(costs.rows_at_best(8, 100) <= costs.rows(8, 100));
    }
}

// T(1) that is only measured between drafted rounds was taken for a tenth more than plain decoding takes, and lengths that alternate for cheap.
static void test_a_change_of_the_batch_size_is_a_cost_of_its_own() {
    for (double change : {0.0, 0.1, 0.4}) {
        cost_model costs(8);
        for (int i = 0; i < 200; ++i) {
            costs.measure_rows(1, 100, 1 + change, true);
            costs.measure_rows(3, 100, 1.3 + change, true);
            costs.measure_rows(3, 100, 1.3, false);
        }
        ASSERT(std::fabs(costs.change() - change) < 0.03);
        ASSERT(std::fabs(costs.rows(1, 100) - 1) < 0.05 && std::fabs(costs.rows(3, 100) - 1.3) < 0.05);
        ASSERT(std::fabs(costs.rows(3, 100, true) - costs.rows(3, 100) - costs.change()) < 1e-9);
    }
    // two drafts or three: the one that the last batch had, if they are as good as each other
    depth_control control(3);
    for (int i = 0; i < 100; ++i) {
        for (int n_rows : {1, 1, 3, 3, 4, 4}) {
            const int before = n_rows == 1 ? (i % 2 ? 1 : 4) : n_rows;
            control.close_round({100, before, n_rows, 1 + 0.1 * (n_rows - 1) + (before != n_rows ? 0.2 : 0), n_rows > 1, 0.05, n_rows});
        }
    }
    const std::vector<float> sure = {9.0f, 9.0f, -1.8f}; // the third stands once in seven times: 0.14 for 0.1
    for (int i = 0; i < 8; ++i) {
        control.observe(0, sure, true);
    }
    ASSERT(control.choose(3, sure, 100, 3) == 2);
}

// One row after several took 15 % longer than one after another, where several after one took no longer.  T(1) was measured there alone and taken
// for a tenth too much, and a draft that loses a tenth was kept at it: 0.89x on chat.
static void test_one_row_is_measured_after_another_one() {
    double mean = 0;
    for (unsigned seed = 1; seed <= 32; ++seed) {
        world w = with_survival(0.7);
        w.noise  = 0.05;
        w.change = 0;
        w.after  = 0.15;
        depth_control control(w.n_max);
        run(control, w, 2000, seed);
        mean += control.costs().rows(1, 2000) / control.costs().rows(3, 2000) * w.rows(3, 2000) / 32;
    }
    ASSERT(std::fabs(mean - 1) < 0.03);
}

int main() {
    test_survival();
    test_costs();
    test_a_change_of_the_batch_size_is_a_cost_of_its_own();
    test_one_row_is_measured_after_another_one();
    test_never_slower_than_plain();
    test_a_sure_head_on_a_useless_draft_is_not_believed();
    test_a_good_draft_runs_near_its_best_length();
    test_confidence_beats_every_fixed_length();
    test_a_machine_that_gets_busy_changes_nothing();
    test_drafting_pauses_and_comes_back();
    test_the_length_shrinks_where_verification_grows_with_the_context();
    test_stalls_change_little();
    test_no_pattern_of_acceptance_makes_it_slower();
    test_what_may_be_lost_is_bounded_in_any_world();
    return 0;
}
