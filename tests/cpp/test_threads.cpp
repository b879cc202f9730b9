// One draft, used by several threads at once, each with a context of its own: every thread sees what one alone sees.
//
// Stands for: state of a context that has slipped into the shared draft, a static buffer, and errors that cross threads.
#include "test.h"
#include "toy.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

static const char * const path = "test_threads.gguf";

static const toy::draft_options options;

// A sequence of its own for each seed, with rewinds, growth and refusals on the way; returns all that was proposed.
static std::vector<int32_t> walk(const dspark_draft * draft, uint32_t seed) {
    dspark_draft_context_params params;
    dspark_draft_context_params_init(&params);
    params.n_threads               = 1; // no OpenMP: ThreadSanitizer cannot see through it
    dspark_draft_context * context = nullptr;
    ASSERT_OK(dspark_draft_context_create(draft, nullptr, &params, &context));
    const size_t             width = (size_t) options.H * options.target_layers.size();
    const std::vector<float> f     = toy::random_values(width * 600, seed);
    std::vector<float>       logits(5 * (size_t) options.Vd);
    std::vector<int32_t>     seen;
    for (int32_t round = 0; round < 60; ++round) {
        dspark_draft_context_state state;
        state.struct_size = sizeof(state);
        ASSERT_OK(dspark_draft_context_get_state(context, &state));
        const int32_t n_past = state.n_past;
        const int32_t n      = round == 30 ? 450 : 1 + round % 5;
        ASSERT_OK(dspark_draft_context_append(context, f.data() + width * (size_t) (n_past % 100), n > 100 ? 450 : n));
        dspark_proposal p;
        ASSERT_OK(dspark_draft_context_propose(context, (int32_t) ((seed + (uint32_t) round) % (uint32_t) options.V), 5, round % 2 ? logits.data() : nullptr, &p));
        seen.insert(seen.end(), p.ids, p.ids + p.n);
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_propose(context, -1 - (int32_t) seed, 5, nullptr, &p));
        ASSERT(strstr(dspark_last_error(), ("token " + std::to_string(-1 - (int32_t) seed)).c_str()));
        if (round % 7 == 6) {
            ASSERT_OK(dspark_draft_context_rewind(context, n_past / 2));
        }
    }
    dspark_draft_context_free(context);
    return seen;
}

int main() {
    toy::bind();
    toy::make_draft(options).save(path);
    dspark_draft * draft = nullptr;
    ASSERT_OK(dspark_draft_load(path, nullptr, &draft));

    const int                         n_threads = 3;
    std::vector<std::vector<int32_t>> alone, together((size_t) n_threads);
    for (int i = 0; i < n_threads; ++i) {
        alone.push_back(walk(draft, (uint32_t) i + 1));
    }
    std::atomic<int>         n_ready{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back([&, i] {
            // its own handle too: loading beside others that run
            dspark_draft * own = nullptr;
            for (++n_ready; n_ready < n_threads;) {
                std::this_thread::yield();
            }
            ASSERT_OK(dspark_draft_load(path, nullptr, &own));
            together[(size_t) i] = walk(i % 2 ? own : draft, (uint32_t) i + 1);
            dspark_draft_free(own);
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    ASSERT(together == alone && alone[0] != alone[1]);
    dspark_draft_free(draft);
    remove(path);
    return 0;
}
