// The rules that decide which tokens stand and how many are tried, as plain functions.
//
// Stands for: ties in argmax (greedy decoding takes the lowest id, ggml's argmax does not), blocks accepted past their end,
// and a confidence threshold that reorders, skips or keeps one token too many.
#include "depth.h"
#include "test.h"
#include "verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

using namespace dspark;

static const float inf = std::numeric_limits<float>::infinity();

// A NaN in front of 64 logits hid them all from the draft's chain, and only from it.
static void test_argmax_is_that_of_llama_cpps_greedy_sampler() {
    for (int n : {1, 2, 15, 16, 17, 255, 256, 257, 300, 600}) {
        for (int peak : {0, 1, n / 2, n - 1}) {
            for (int nan : {-1, 0, 1, n / 3, n / 2, n - 1, n}) { // n: all of them
                std::vector<float> values((size_t) n, -1.0f);
                values[(size_t) std::min(peak, n - 1)] = 2.0f;
                values[(size_t) n - 1]                 = 2.0f; // a tie
                if (nan == n) {
                    values.assign((size_t) n, NAN);
                } else if (nan >= 0 && nan < n) {
                    values[(size_t) nan] = NAN;
                }
                int greedy = 0;
                for (int i = 1; i < n; ++i) {
                    greedy = values[(size_t) i] > values[(size_t) greedy] ? i : greedy;
                }
                ASSERT(argmax(values.data(), n) == greedy);
            }
        }
    }
}

static void test_argmax() {
    const float rising[]  = {1, 2, 3};
    const float falling[] = {3, 2, 1};
    const float tie[]     = {0, 5, 5, 5};
    const float zeros[]   = {0.0f, -0.0f};
    const float hidden[]  = {-inf, -inf, -7, -inf};
    const float nothing[] = {-inf, -inf};
    const float top[]     = {1, inf, inf};
    ASSERT(argmax(rising, 3) == 2);
    ASSERT(argmax(falling, 3) == 0);
    ASSERT(argmax(tie, 4) == 1);
    ASSERT(argmax(zeros, 2) == 0);
    ASSERT(argmax(hidden, 4) == 2);
    ASSERT(argmax(nothing, 2) == 0);
    ASSERT(argmax(top, 3) == 1);
    ASSERT(argmax(rising, 1) == 0);
}

// Every number of right drafts in a block of every length, by hand.
static void test_verification() {
    for (int32_t n = 0; n <= 6; ++n) {
        for (int32_t n_right = 0; n_right <= n; ++n_right) {
            std::vector<int32_t> drafted;
            for (int32_t i = 0; i < n; ++i) {
                drafted.push_back(10 + i);
            }
            verification v(drafted);
            for (int32_t i = 0; i < n_right; ++i) {
                ASSERT(v.row() == i);
                ASSERT(v.accept(10 + i));
            }
            ASSERT(v.row() == n_right && v.n_accepted() == n_right && v.n_drafted() == n);
            // a wrong token, and any token behind the last draft, moves nothing
            ASSERT(!v.accept(99));
            ASSERT(n_right < n || !v.accept(10 + n));
            ASSERT(v.row() == n_right && v.n_accepted() == n_right);
            ASSERT(v.drafted() == drafted);
        }
    }
    verification empty;
    ASSERT(empty.row() == 0 && empty.n_drafted() == 0 && !empty.accept(0));
}

static void test_depth() {
    const std::vector<float> logits = {2.0f, 1.0f, -1.0f, 3.0f};
    ASSERT(depth_by_confidence(logits, 0.0f) == 4);
    ASSERT(depth_by_confidence(logits, 0.5f) == 2); // the fourth is confident, but behind one that is not
    ASSERT(depth_by_confidence(logits, 0.8f) == 1);
    ASSERT(depth_by_confidence(logits, 0.95f) == 0);
    ASSERT(depth_by_confidence(logits, 1.0f) == 0);
    ASSERT(depth_by_confidence({}, 0.5f) == 0);
    ASSERT(depth_by_confidence({0.0f}, 0.5f) == 1); // equal to the threshold is not below it
    ASSERT(depth_by_confidence({inf, -inf}, 1.0f) == 1);
    ASSERT(depth_by_confidence({-inf, -1000.0f, 1000.0f}, 0.0f) == 3); // 0 keeps all
}

int main() {
    test_argmax();
    test_argmax_is_that_of_llama_cpps_greedy_sampler();
    test_verification();
    test_depth();
    return 0;
}
