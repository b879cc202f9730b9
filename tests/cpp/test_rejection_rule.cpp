// The rule of rejection sampling as plain functions: what is written has the target's distribution, for any draft.
//
// Stands for: a residual that forgets tokens which the draft does not have, a draft that stands too often or too seldom, a token
// without probability that is drawn after all, and drafts that were chosen for verification by a look at what follows.
#include "depth.h"
#include "test.h"
#include "verify.h"

#include <cmath>
#include <random>

using namespace dspark;

static std::mt19937_64 rng(3);

static double uniform() {
    return std::uniform_real_distribution<double>()(rng);
}

// Every keep-th of n tokens, with random weights of which some are far larger than others.
static distribution random_distribution(int32_t n, int32_t keep) {
    distribution d;
    double       sum = 0;
    for (int32_t id = keep - 1; id < n; id += keep) {
        d.push_back({id, (float) std::exp(3 * uniform())});
        sum += (double) d.back().p;
    }
    for (token_prob & t : d) {
        t.p = (float) ((double) t.p / sum);
    }
    return d;
}

// One token by the rule; drafted says whether the draft stood.
static int32_t by_rejection(distribution p, const distribution & q, bool & stood) {
    const int32_t draft = draw(q, uniform());
    stood               = stands(p, q, draft, uniform());
    if (stood) {
        return draft;
    }
    take_residual(p, q);
    return draw(p, uniform());
}

// Deviations from the law p on a normal scale (Wilson and Hilferty).
static double chi_square(const std::vector<int> & counts, const distribution & p, int n) {
    double x = 0;
    for (const token_prob & t : p) {
        const double expected = n * (double) t.p;
        x += (counts[(size_t) t.id] - expected) * (counts[(size_t) t.id] - expected) / expected;
    }
    const double k = (double) p.size() - 1;
    return (std::cbrt(x / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

static void test_the_law_is_the_targets_and_drafts_stand_as_often_as_they_should() {
    constexpr int n = 200000;
    // as the target, another, with half of the tokens, with none of them, one token alone, and a target of few tokens
    const distribution full = random_distribution(20, 1), half = random_distribution(20, 2), few = random_distribution(20, 5);
    const distribution other = random_distribution(20, 1), point = {{7, 1.0f}};
    distribution       apart;
    for (int32_t id = 0; id < 20; ++id) {
        if (probability(few, id) == 0) {
            apart.push_back({id, 1.0f / 16});
        }
    }
    for (const auto & [p, q] : {std::pair(full, full), {full, other}, {full, half}, {half, full}, {few, full}, {few, apart}, {full, point},
                                {point, full}}) {
        std::vector<int> counts(20), of_match(20);
        int              n_stood = 0, n_equal = 0;
        for (int i = 0; i < n; ++i) {
            bool stood = false;
            ++counts[(size_t) by_rejection(p, q, stood)];
            n_stood += stood;
            const int32_t drawn = draw(p, uniform());
            ++of_match[(size_t) drawn];
            n_equal += drawn == draw(q, uniform());
        }
        double product = 0;
        for (const token_prob & t : p) {
            product += (double) t.p * (double) probability(q, t.id);
        }
        for (int32_t id = 0; id < 20; ++id) {
            ASSERT(probability(p, id) > 0 || (counts[(size_t) id] == 0 && of_match[(size_t) id] == 0));
        }
        ASSERT(p.size() == 1 || (chi_square(counts, p, n) < 2.33 && chi_square(of_match, p, n) < 2.33)); // p > 0.01
        ASSERT(std::fabs((double) n_stood / n - overlap(p, q)) < 0.005);
        ASSERT(std::fabs((double) n_equal / n - product) < 0.005);
        ASSERT(overlap(p, q) >= product - 1e-6);
    }
}

// Two tokens after one another, each with a draft; the second distribution depends on the first token.
static void test_the_joint_law_of_two_tokens() {
    constexpr int n = 200000;
    const distribution p0 = random_distribution(6, 1), q0 = random_distribution(6, 1);
    std::vector<distribution> p1, q1;
    distribution              joint;
    for (int32_t a = 0; a < 6; ++a) {
        p1.push_back(random_distribution(6, 1));
        q1.push_back(random_distribution(6, 1 + a % 2));
        for (int32_t b = 0; b < 6; ++b) {
            joint.push_back({6 * a + b, p0[(size_t) a].p * p1.back()[(size_t) b].p});
        }
    }
    std::vector<int> counts(36);
    for (int i = 0; i < n; ++i) {
        // both drafts are drawn first, as in a block; the second is lost with the first
        const int32_t x0 = draw(q0, uniform());
        const int32_t x1 = draw(q1[(size_t) x0], uniform());
        distribution  p  = p0;
        int32_t       a = x0, b;
        if (stands(p, q0, x0, uniform())) {
            p = p1[(size_t) a];
            b = x1;
            if (!stands(p, q1[(size_t) a], x1, uniform())) {
                take_residual(p, q1[(size_t) a]);
                b = draw(p, uniform());
            }
        } else {
            take_residual(p, q0);
            a = draw(p, uniform());
            b = draw(p1[(size_t) a], uniform());
        }
        ++counts[(size_t) (6 * a + b)];
    }
    ASSERT(chi_square(counts, joint, n) < 2.33);
}

static void test_edges() {
    const distribution d = {{3, 0.0f}, {5, 0.25f}, {8, 0.0f}, {9, 0.75f}, {11, 0.0f}};
    ASSERT(draw(d, 0) == 5 && draw(d, 0.2499) == 5 && draw(d, 0.25) == 9 && draw(d, 0.9999999999) == 9 && draw(d, 1) == 9);
    ASSERT(probability(d, 5) == 0.25f && probability(d, 4) == 0 && probability(d, 99) == 0 && probability({}, 0) == 0);
    // what the target does not have never stands, not even by u = 0
    ASSERT(!stands(d, {{8, 1.0f}}, 8, 0) && !stands(d, {{4, 1.0f}}, 4, 0));
    ASSERT(stands(d, {{9, 1.0f}}, 9, 0.7499) && !stands(d, {{9, 1.0f}}, 9, 0.75));
    // rounding alone makes the two differ: nothing is left, and the target's is kept
    distribution p = {{0, 0.5f}, {1, 0.5f}};
    take_residual(p, {{0, 0.5f + 1e-7f}, {1, 0.5f - 1e-7f}});
    ASSERT(p[0].p == 0.5f && p[1].p == 0.5f);
    take_residual(p, {{0, 0.75f}, {2, 0.25f}});
    ASSERT(p[0].p == 0 && p[1].p == 1);
}

static depth_control control_with_head() {
    depth_control control(7);
    // the second row is dear and the others are nearly free: one draft may not pay where two do
    for (int i = 0; i < 40; ++i) {
        for (int32_t n = 1; n <= 8; ++n) {
            control.close_round({100, n, n, n == 1 ? 1.0 : 1.4 + 0.02 * (n - 2), n > 1, 0.1, n == 1 ? 1 : 2});
        }
    }
    return control;
}

// Whether draft k is verified may depend on the confidences up to its own, which know the drafts before it, and on nothing after.
static void test_a_draft_is_decided_on_without_a_look_at_it() {
    depth_control control   = control_with_head();
    int           n_shorter = 0, n_differ = 0;
    for (int i = 0; i < 2000; ++i) {
        std::vector<float> logits(7);
        for (float & x : logits) {
            x = (float) (8 * uniform() - 4);
        }
        const int32_t k = control.choose(7, logits, 100, 1, true);
        n_shorter += k < 7;
        n_differ += k != control.choose(7, logits, 100, 1);
        for (int again = 0; again < 8; ++again) {
            for (size_t later = (size_t) k + 1; later < 7; ++later) {
                logits[later] = (float) (8 * uniform() - 4);
            }
            ASSERT(control.choose(7, logits, 100, 1, true) == k);
        }
    }
    ASSERT(n_shorter > 100 && n_differ > 20);
}

// The paper's example: p = (0.7, 0.3), q = (0.5, 0.5), and a draft that is verified where the next one is sure to stand, which is so after
// token 0 alone.  With a look at it 0 comes out too often; where every draft is decided on in its turn, as often as it should.
static void test_a_look_ahead_would_bias_the_text() {
    const distribution p = {{0, 0.7f}, {1, 0.3f}}, q = {{0, 0.5f}, {1, 0.5f}};
    depth_control      control = control_with_head();
    for (const bool in_order : {true, false}) {
        constexpr int n = 200000;
        int           n_zero = 0, n_undrafted = 0;
        for (int i = 0; i < n; ++i) {
            const int32_t x = draw(q, uniform());
            const int32_t k = control.choose(2, {-0.2f, x == 0 ? 9.0f : -9.0f}, 100, 1, in_order);
            distribution  left  = p;
            const bool    stood = k > 0 && stands(p, q, x, uniform());
            if (k > 0 && !stood) {
                take_residual(left, q);
            }
            n_zero += (stood ? x : draw(left, uniform())) == 0;
            n_undrafted += k == 0;
        }
        ASSERT(in_order ? n_undrafted == n : n_undrafted > n / 4 && n_undrafted < n);
        ASSERT((std::fabs((double) n_zero / n - 0.7) < 0.005) == in_order);
    }
}

int main() {
    test_edges();
    test_the_law_is_the_targets_and_drafts_stand_as_often_as_they_should();
    test_the_joint_law_of_two_tokens();
    test_a_draft_is_decided_on_without_a_look_at_it();
    test_a_look_ahead_would_bias_the_text();
    return 0;
}
