// One sequence of a draft: what it proposes depends on the features of its positions and on nothing else.
//
// Stands for: kernels that compute a row differently in another chunk, cells left over from a longer past, a cache that loses
// rows when it grows, graphs that keep views of freed memory, a proposal that changes its context, and a draft freed under
// those who use it.
#include "draft_context.h"
#include "test.h"
#include "toy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

static const char * const path = "test_draft_context.gguf";

static std::vector<std::pair<std::string, toy::draft_options>> kinds() {
    toy::draft_options vanilla, gated, rnn, plain, extras;
    gated.markov        = "gated";
    gated.Vd            = gated.V;
    rnn.markov          = "rnn";
    rnn.anchor_first    = false;
    plain.markov        = nullptr;
    plain.confidence    = 1;
    extras.extras       = true;
    extras.shared_kv    = true;
    extras.target_layers = {1, 0, 2};
    return {{"vanilla", vanilla}, {"gated", gated}, {"rnn", rnn}, {"plain", plain}, {"extras", extras}};
}

static dspark_draft * load(const toy::draft_options & options) {
    dspark_draft * draft = nullptr;
    toy::make_draft(options).save(path);
    ASSERT_OK(dspark_draft_load(path, nullptr, &draft));
    return draft;
}

static dspark_draft_context * open(const dspark_draft * draft, int32_t n_ctx = 0, int32_t n_threads = 1) {
    dspark_draft_context_params params;
    dspark_draft_context_params_init(&params);
    params.n_threads               = n_threads;
    params.n_ctx                   = n_ctx;
    dspark_draft_context * context = nullptr;
    ASSERT_OK(dspark_draft_context_create(draft, nullptr, &params, &context));
    return context;
}

// Features of n positions, a function of the position.
struct features {
    size_t             width;
    std::vector<float> values;

    features(const toy::draft_options & o, size_t n, uint32_t seed = 11)
        : width((size_t) o.H * o.target_layers.size()), values(toy::random_values(n * width, seed)) {}

    const float * at(size_t pos) const { return values.data() + pos * width; }
};

static dspark_draft_context_state state_of(dspark_draft_context * context) {
    dspark_draft_context_state state;
    state.struct_size = sizeof(state);
    ASSERT_OK(dspark_draft_context_get_state(context, &state));
    return state;
}

static int32_t n_past(dspark_draft_context * context) {
    return state_of(context).n_past;
}

static void append(dspark_draft_context * context, const features & f, int32_t begin, int32_t end, int32_t chunk) {
    for (int32_t pos = begin; pos < end; pos += chunk) {
        ASSERT_OK(dspark_draft_context_append(context, f.at((size_t) pos), std::min(chunk, end - pos)));
    }
    ASSERT(n_past(context) == end);
}

struct block {
    std::vector<int32_t> ids;
    std::vector<float>   confidence, logits;

    bool operator==(const block & b) const { // bit for bit
        const auto same = [](const std::vector<float> & x, const std::vector<float> & y) {
            return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
        };
        return ids == b.ids && same(confidence, b.confidence) && same(logits, b.logits);
    }
};

// Its logits too, where n_rows of them are asked for.
static block propose(dspark_draft_context * context, int32_t anchor, int32_t n_max = 256, int n_rows = 0) {
    dspark_proposal                  p;
    const dspark_draft_context_state before = state_of(context);
    const size_t                     most   = (size_t) std::min(n_max, DSPARK_BLOCK_MAX) * (size_t) n_rows;
    std::vector<float>               logits(most, 12345.0f);
    ASSERT(n_rows == 0 || n_rows == before.n_logits);
    ASSERT_OK(dspark_draft_context_propose(context, anchor, n_max, n_rows ? logits.data() : nullptr, &p));
    ASSERT(state_of(context).n_past == before.n_past);
    const size_t n = (size_t) p.n;
    block        b;
    b.ids.assign(p.ids, p.ids + n);
    if (p.has_confidence) {
        b.confidence.assign(p.confidence_logits, p.confidence_logits + n);
    }
    // only the rows of the proposal are written
    ASSERT(std::count(logits.begin() + (ptrdiff_t) (n * (size_t) n_rows), logits.end(), 12345.0f) == (ptrdiff_t) (most - n * (size_t) n_rows));
    logits.resize(n * (size_t) n_rows);
    b.logits = std::move(logits);
    return b;
}

static void test_chunks(const std::string & kind, const toy::draft_options & o) {
    dspark_draft *  draft = load(o);
    const features  f(o, 40);
    for (int32_t n : {1, 2, 3, 4, 5, 7, 8, 9, 16, 40}) {
        dspark_draft_context * whole = open(draft);
        append(whole, f, 0, n, n);
        const block expected = propose(whole, 3, 256, o.Vd);
        for (int32_t chunk : {1, 2, 3, 5, 8, 13}) {
            dspark_draft_context * parts = open(draft);
            append(parts, f, 0, n, chunk);
            if (!(propose(parts, 3, 256, o.Vd) == expected)) {
                fprintf(stderr, "%s: %d rows in chunks of %d propose otherwise than as a whole\n", kind.c_str(), n, chunk);
                exit(1);
            }
            dspark_draft_context_free(parts);
        }
        dspark_draft_context_free(whole);
    }
    dspark_draft_free(draft);
}

// The cache itself, byte for byte, where rounds are run between the chunks.
static void test_cache_bytes(const toy::draft_options & o) {
    toy::make_draft(o).save(path);
    const auto                     model = dspark::draft_model::load(path, nullptr, true);
    dspark::draft_context::params  params;
    params.n_threads = 1;
    const features                 f(o, 50);
    dspark::draft_context          whole(model, nullptr, params), parts(model, nullptr, params);
    whole.append(f.at(0), 50);
    dspark::proposal p;
    for (int32_t pos = 0, n = 1; pos < 50; pos += n, n = n % 6 + 1) {
        n = std::min(n, 50 - pos);
        parts.append(f.at((size_t) pos), n);
        parts.propose(pos % o.V, 5, false, nullptr, p);
    }
    for (int32_t il = 0; il < o.L; ++il) {
        for (bool v : {false, true}) {
            const std::vector<uint8_t> expected = whole.cache_rows(il, v);
            ASSERT(expected.size() == 50 * (size_t) (o.nkv * o.d) * 2 && parts.cache_rows(il, v) == expected);
        }
    }
}

static void test_proposal(const toy::draft_options & o) {
    dspark_draft *         draft   = load(o);
    const features         f(o, 30);
    dspark_draft_context * context = open(draft);
    const int32_t          n_max   = o.anchor_first ? o.B : o.B - 1;

    dspark_proposal p;
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_propose(context, 1, 4, nullptr, &p));
    append(context, f, 0, 10, 10);
    const block first = propose(context, 1, 256, o.Vd);
    ASSERT((int32_t) first.ids.size() == n_max);
    ASSERT(first.confidence.size() == (o.confidence ? first.ids.size() : 0));
    ASSERT(first.logits.size() == first.ids.size() * (size_t) o.Vd);
    ASSERT(propose(context, 1, 256, o.Vd) == first); // twice the same
    for (int32_t id : first.ids) {
        ASSERT(id >= 0 && id < o.V);
    }
    // a shorter one is its beginning, with and without the logits
    for (int32_t n = 1; n <= n_max; ++n) {
        block shorter = first;
        shorter.ids.resize((size_t) n);
        shorter.confidence.resize(o.confidence ? (size_t) n : 0);
        shorter.logits.resize((size_t) n * (size_t) o.Vd);
        ASSERT(propose(context, 1, n, o.Vd) == shorter);
        shorter.logits.clear();
        ASSERT(propose(context, 1, n) == shorter);
    }
    // each token is the largest of its logits, mapped through d2t
    for (size_t k = 0; k < first.ids.size(); ++k) {
        const auto row  = first.logits.begin() + (ptrdiff_t) (k * (size_t) o.Vd);
        const int  best = (int) (std::max_element(row, row + o.Vd) - row);
        ASSERT(first.ids[k] == (o.Vd == o.V ? best : (best * 37 + 5) % o.V));
    }
    // other anchors and other features are seen
    int n_other = 0;
    for (int32_t anchor = 0; anchor < o.V; ++anchor) {
        n_other += !(propose(context, anchor, 256, o.Vd) == first);
    }
    ASSERT(n_other == o.V - 1);
    append(context, f, 10, 11, 1);
    ASSERT(!(propose(context, 1, 256, o.Vd) == first));

    // refusals change nothing
    const block before = propose(context, 1, 256, o.Vd);
    for (int32_t anchor : {-1, o.V, INT32_MAX, INT32_MIN}) {
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_propose(context, anchor, 4, nullptr, &p));
        ASSERT(p.n == 0);
    }
    for (int32_t n : {0, -1, INT32_MIN}) {
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_propose(context, 1, n, nullptr, &p));
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_append(context, f.at(0), n));
    }
    for (int32_t n : {-1, 12, INT32_MAX, INT32_MIN}) {
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_rewind(context, n));
    }
    ASSERT(n_past(context) == 11);
    ASSERT(propose(context, 1, 256, o.Vd) == before);
    ASSERT_OK(dspark_draft_context_rewind(context, 0));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_propose(context, 1, 4, nullptr, &p));
    dspark_draft_context_free(context);
    dspark_draft_free(draft);
}

// Back to any position, other features in between, and on again: as if it had never been elsewhere.
static void test_rewind(const toy::draft_options & o) {
    dspark_draft *         draft = load(o);
    const features         f(o, 60), other(o, 60, 99);
    dspark_draft_context * straight = open(draft);
    std::vector<block>     expected;
    for (int32_t n = 1; n <= 60; ++n) {
        append(straight, f, n - 1, n, 1);
        expected.push_back(propose(straight, n % o.V, 256, o.Vd));
    }
    dspark_draft_context * winding = open(draft);
    append(winding, f, 0, 60, 7);
    for (int32_t n : {59, 57, 56, 40, 41, 13, 12, 5, 4, 3, 1}) {
        const int32_t past = n_past(winding);
        if (n < past) {
            ASSERT_OK(dspark_draft_context_rewind(winding, n));
        } else {
            append(winding, f, past, n, 2);
        }
        ASSERT(propose(winding, n % o.V, 256, o.Vd) == expected[(size_t) n - 1]);
        // somewhere else and back, with and without a round there
        for (int32_t there : {1, 3, 4, 6}) {
            const int32_t to = std::min(n + there, 60);
            append(winding, other, n, to, there);
            if (there % 2) {
                propose(winding, 7);
            }
            ASSERT_OK(dspark_draft_context_rewind(winding, n));
            ASSERT(propose(winding, n % o.V, 256, o.Vd) == expected[(size_t) n - 1]);
        }
    }
    ASSERT_OK(dspark_draft_context_rewind(winding, 0));
    append(winding, f, 0, 60, 60);
    ASSERT(propose(winding, 60 % o.V, 256, o.Vd) == expected[59]);
    dspark_draft_context_free(winding);
    dspark_draft_context_free(straight);
    dspark_draft_free(draft);
}

// Across the sizes where the cache is made anew (512, 1024) and where attention looks at more cells (256).
static void test_growth(const toy::draft_options & o) {
    dspark_draft *         draft = load(o);
    const features         f(o, 1100);
    dspark_draft_context * growing = open(draft);
    size_t                 kv_size = 0;
    int                    n_grown = 0;
    int32_t                at      = 0;
    ASSERT(state_of(growing).kv_size == 0);
    for (int32_t n : {200, 250, 252, 256, 500, 507, 508, 510, 511, 512, 513, 700, 1019, 1020, 1023, 1024, 1100}) {
        append(growing, f, at, n, 37);
        at = n;
        const block seen = propose(growing, 5, 256, o.Vd);
        n_grown += state_of(growing).kv_size > kv_size;
        kv_size = state_of(growing).kv_size;

        dspark_draft_context * whole = open(draft);
        append(whole, f, 0, n, n);
        ASSERT(propose(whole, 5, 256, o.Vd) == seen);
        dspark_draft_context_free(whole);
    }
    ASSERT(n_grown == 3 || o.B < 5);
    // the larger cache serves the short sequence too
    ASSERT_OK(dspark_draft_context_rewind(growing, 100));
    dspark_draft_context * small = open(draft);
    append(small, f, 0, 100, 100);
    ASSERT(propose(growing, 5, 256, o.Vd) == propose(small, 5, 256, o.Vd));
    dspark_draft_context_free(small);
    dspark_draft_context_free(growing);
    dspark_draft_free(draft);
}

// With a head of zeros only the Markov head speaks: the logits of a slot are W2 W1[the token before], and where that is zero
// too, all are equal and the first row wins.
static void test_chain_by_hand() {
    toy::draft_options o;
    o.V = o.Vd   = 200;
    toy::gguf  g = toy::make_draft(o);
    auto &     head = g.at("output.weight").data;
    std::fill(head.begin(), head.end(), (uint8_t) 0);
    const auto open_it = [&] {
        dspark_draft * draft = nullptr;
        g.save(path);
        ASSERT_OK(dspark_draft_load(path, nullptr, &draft));
        dspark_draft_context * context = open(draft);
        append(context, features(o, 10), 0, 10, 10);
        dspark_draft_free(draft);
        return context;
    };
    const size_t       R = (size_t) o.R;
    std::vector<float> w1((size_t) o.V * R), w2((size_t) o.V * R);
    std::memcpy(w1.data(), g.at("markov_w1.weight").data.data(), w1.size() * sizeof(float));
    std::memcpy(w2.data(), g.at("markov_w2.weight").data.data(), w2.size() * sizeof(float));
    dspark_draft_context * context = open_it();
    for (int32_t anchor : {0, 1, 100, 199}) {
        const block b    = propose(context, anchor, 256, o.Vd);
        int32_t     prev = anchor;
        for (size_t k = 0; k < b.ids.size(); ++k) {
            for (size_t row = 0; row < (size_t) o.Vd; ++row) {
                float expected = 0;
                for (size_t i = 0; i < R; ++i) {
                    expected += w2[row * R + i] * w1[(size_t) prev * R + i];
                }
                ASSERT(std::fabs(b.logits[k * (size_t) o.Vd + row] - expected) < 1e-4f);
            }
            prev = b.ids[k];
        }
    }
    dspark_draft_context_free(context);

    auto & bias = g.at("markov_w2.weight").data;
    std::fill(bias.begin(), bias.end(), (uint8_t) 0);
    context = open_it();
    ASSERT(propose(context, 7).ids == std::vector<int32_t>(5, 0));
    dspark_draft_context_free(context);
}

static void test_n_ctx(const toy::draft_options & o) {
    dspark_draft * draft = load(o);
    const features f(o, 600);
    for (int32_t n_ctx : {o.B, o.B + 1, 20, 255, 256, 257, 512, 513, 520}) {
        dspark_draft_context * limited = open(draft, n_ctx);
        dspark_draft_context * free_   = open(draft);
        // the block fits up to and with its last slot below n_ctx
        for (int32_t n = std::max(1, n_ctx - o.B - 1); n <= n_ctx; ++n) {
            append(limited, f, n_past(limited), n, 64);
            append(free_, f, n_past(free_), n, 64);
            const block seen = propose(limited, 5, 256, o.Vd);
            if (n + o.B <= n_ctx) {
                ASSERT(seen == propose(free_, 5, 256, o.Vd) && !seen.ids.empty());
            } else {
                ASSERT(seen.ids.empty());
            }
        }
        // past it, it goes on taking features, and comes back
        append(limited, f, n_ctx, n_ctx + 30, 30);
        ASSERT(propose(limited, 5).ids.empty());
        if (n_ctx > o.B) {
            ASSERT_OK(dspark_draft_context_rewind(limited, n_ctx - o.B));
            ASSERT_OK(dspark_draft_context_rewind(free_, n_ctx - o.B));
            ASSERT(propose(limited, 5, 256, o.Vd) == propose(free_, 5, 256, o.Vd));
        }
        dspark_draft_context_free(limited);
        dspark_draft_context_free(free_);
    }
    dspark_draft_free(draft);
}

static void test_params() {
    toy::draft_options o;
    dspark_draft *     draft = load(o);
    const auto refused = [&](void (*change)(dspark_draft_context_params &)) {
        dspark_draft_context_params params;
        dspark_draft_context_params_init(&params);
        change(params);
        dspark_draft_context * context = reinterpret_cast<dspark_draft_context *>(1);
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_create(draft, nullptr, &params, &context));
        ASSERT(!context);
    };
    refused([](dspark_draft_context_params & p) { p.n_threads = 0; });
    refused([](dspark_draft_context_params & p) { p.n_threads = -1; });
    refused([](dspark_draft_context_params & p) { p.n_threads = INT32_MAX; });
    refused([](dspark_draft_context_params & p) { p.n_ctx = -1; });
    refused([](dspark_draft_context_params & p) { p.type_k = GGML_TYPE_COUNT; });
    refused([](dspark_draft_context_params & p) { p.type_k = GGML_TYPE_I32; });
    refused([](dspark_draft_context_params & p) { p.type_k = GGML_TYPE_Q8_0; }); // heads of 8 do not fit its blocks of 32
    refused([](dspark_draft_context_params & p) { p.type_v = GGML_TYPE_Q4_0; });
    refused([](dspark_draft_context_params & p) { p.type_v = 4; }); // a type that ggml has given up
    refused([](dspark_draft_context_params & p) { p.type_v = 31; });
    refused([](dspark_draft_context_params & p) { p.type_v = 1000; });
    refused([](dspark_draft_context_params & p) { p.type_k = INT32_MAX; });
    refused([](dspark_draft_context_params & p) { p.type_k = -1; });
    refused([](dspark_draft_context_params & p) { p.type_v = INT32_MIN; });
    dspark_draft_free(draft);

    // every type of cache runs
    o.H = 64;
    o.d = 32;
    draft = load(o);
    const features f(o, 20);
    for (int32_t type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1}) {
        dspark_draft_context_params params;
        dspark_draft_context_params_init(&params);
        params.n_threads = 1;
        params.type_k = params.type_v = type;
        dspark_draft_context *context = nullptr, *again = nullptr;
        ASSERT_OK(dspark_draft_context_create(draft, nullptr, &params, &context));
        ASSERT_OK(dspark_draft_context_create(draft, nullptr, &params, &again));
        append(context, f, 0, 20, 20);
        append(again, f, 0, 20, 3);
        ASSERT(propose(context, 1, 256, o.Vd) == propose(again, 1, 256, o.Vd));
        dspark_draft_context_free(context);
        dspark_draft_context_free(again);
    }
    // each its own
    for (int32_t type_k : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
        for (int32_t type_v : {GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q4_0}) {
            dspark_draft_context_params params;
            dspark_draft_context_params_init(&params);
            params.type_k = type_k;
            params.type_v = type_v;
            dspark_draft_context * context = nullptr;
            ASSERT_OK(dspark_draft_context_create(draft, nullptr, &params, &context));
            append(context, f, 0, 20, 20);
            ASSERT(propose(context, 1).ids.size() == 5);
            dspark_draft_context_free(context);
        }
    }
    dspark_draft_free(draft);
}

// Contexts keep the weights; the handle and the file may go first, and other contexts with them.
static void test_lifetimes(const toy::draft_options & o) {
    dspark_draft *         draft = load(o);
    const features         f(o, 20);
    dspark_draft_context * first = open(draft);
    append(first, f, 0, 20, 20);
    const block            expected = propose(first, 9, 256, o.Vd);
    dspark_draft_context * second   = open(draft);
    ASSERT(remove(path) == 0);
    dspark_draft_free(draft);
    ASSERT(propose(first, 9, 256, o.Vd) == expected);
    dspark_draft_context_free(first);
    append(second, f, 0, 20, 20);
    ASSERT(propose(second, 9, 256, o.Vd) == expected);
    dspark_draft_context_free(second);
}

// After close() the memory is gone and the handle refuses; free() ends it.
static void test_close() {
    toy::draft_options     o;
    dspark_draft *         draft   = load(o);
    const features         f(o, 20);
    dspark_draft_context * context = open(draft);
    append(context, f, 0, 20, 20);
    propose(context, 1);
    ASSERT_OK(dspark_draft_context_close(context));
    dspark_proposal            p;
    dspark_draft_context_state state;
    state.struct_size = sizeof(state);
    for (int i = 0; i < 2; ++i) {
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_append(context, f.at(0), 1));
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_rewind(context, 0));
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_propose(context, 1, 1, nullptr, &p));
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_get_state(context, &state));
        ASSERT_OK(dspark_draft_context_close(context));
    }
    dspark_draft_context_free(context);
    dspark_draft_free(draft);
}

// A draft that borrows has nothing without a target.
static void test_borrowing_needs_a_target() {
    for (int which = 0; which < 3; ++which) {
        toy::draft_options o;
        o.own_embd                   = which == 1;
        o.own_output                 = which == 0;
        o.Vd                         = o.V;
        dspark_draft *         draft = load(o);
        dspark_draft_context * context = reinterpret_cast<dspark_draft_context *>(1);
        ASSERT_STATUS(DSPARK_ERROR_MISMATCH, dspark_draft_context_create(draft, nullptr, nullptr, &context));
        ASSERT(!context);
        dspark_draft_free(draft);
    }
}

// Tokens drawn from the draft's distributions: what they were drawn from is told, and is the softmax of the likeliest rows.
static void test_drawn_tokens(const toy::draft_options & o) {
    toy::make_draft(o).save(path);
    dspark::draft_context::params params;
    params.n_threads = 1;
    dspark::draft_context context(dspark::draft_model::load(path, nullptr, true), nullptr, params);
    const features        f(o, 10);
    context.append(f.at(0), 10);
    dspark::proposal     likeliest, p, again;
    dspark::distribution q;
    context.propose(1, 256, true, nullptr, likeliest);

    const int        n = 2000, n_kept = std::min(o.Vd, (int) dspark::n_pick_rows);
    std::vector<int> counts((size_t) o.V);
    dspark::drawing  how;
    for (int i = 0; i < n; ++i) {
        how.seed = (uint64_t) i;
        context.propose(1, 256, i < 50, &how, p);
        ++counts[(size_t) p.ids[0]];
        for (int32_t k = 0; i < 50 && k < (int32_t) p.ids.size(); ++k) {
            context.drawn_from(k, q);
            ASSERT((int) q.size() == n_kept && dspark::probability(q, p.ids[(size_t) k]) > 0);
            std::vector<float> row(p.logits.begin() + k * o.Vd, p.logits.begin() + (k + 1) * o.Vd);
            double             sum = 0;
            std::vector<float> sorted = row;
            std::sort(sorted.begin(), sorted.end(), std::greater<float>());
            for (int j = 0; j < n_kept; ++j) {
                sum += std::exp((double) sorted[(size_t) j]);
            }
            for (int j = 0; j < o.Vd; ++j) {
                const int32_t id       = o.Vd == o.V ? j : (j * 37 + 5) % o.V;
                const double  expected = row[(size_t) j] < sorted[(size_t) n_kept - 1] ? 0 : std::exp((double) row[(size_t) j]) / sum;
                ASSERT(std::fabs((double) dspark::probability(q, id) - expected) < 1e-6);
            }
        }
    }
    context.drawn_from(0, q);
    for (const dspark::token_prob & t : q) {
        ASSERT(std::fabs(counts[(size_t) t.id] - n * (double) t.p) < 5 * std::sqrt(n * (double) t.p + 1));
    }
    // the same by the same seed, and the likeliest again without one
    context.propose(1, 256, false, &how, again);
    ASSERT(again.ids == p.ids);
    context.propose(1, 256, true, nullptr, again);
    ASSERT(again.ids == likeliest.ids && again.logits == likeliest.logits);
}

int main() {
    toy::bind();
    for (const auto & [kind, options] : kinds()) {
        test_chunks(kind, options);
        test_cache_bytes(options);
        test_proposal(options);
        test_rewind(options);
        test_lifetimes(options);
    }
    test_growth(toy::draft_options());
    test_growth(kinds().back().second);
    toy::draft_options smallest; // its block does not cover the spare rows of an injection
    smallest.B = 1;
    test_growth(smallest);
    test_chain_by_hand();
    for (const auto & kind : kinds()) {
        test_drawn_tokens(kind.second);
    }
    toy::draft_options large; // more rows than a token is drawn from
    large.V  = 701;
    large.Vd = 600;
    test_drawn_tokens(large);
    test_n_ctx(toy::draft_options());
    test_params();
    test_close();
    test_borrowing_needs_a_target();
    remove(path);
    return 0;
}
