// A session's text is the target's own, whatever drafts: with any accept pattern, any draft, any error in between.
//
// Stands for: a draft that changes the text; cells of refused drafts that stay in the target's memory; features that come to
// the drafter at the wrong position or not at all; an end of context that is another with a draft than without; an error
// after which the session or the caller's context is not what it was; two sessions on one context.
#include "test.h"
#include "toy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

static const char * const draft_path  = "test_session.draft.gguf";
static const char * const target_path = "test_session.target.gguf";

using ids = std::vector<int32_t>;

// --- the target -------------------------------------------------------------------------------------------------------

struct context_options {
    uint32_t             n_ctx     = 128;
    uint32_t             n_batch   = 32;
    uint32_t             n_ubatch  = 32;
    uint32_t             n_seq_max = 1;
    dspark_feature_tap * tap       = nullptr;
};

static llama_model * load_target(const toy::gguf & g) {
    g.save(target_path);
    llama_model_params params = toy::llama().llama_model_default_params();
    params.n_gpu_layers       = 0;
    params.load_mode          = LLAMA_LOAD_MODE_NONE;
    llama_model * model       = toy::llama().llama_model_load_from_file(target_path, params);
    ASSERT(model);
    return model;
}

static llama_context * open_context(llama_model * model, const context_options & o = {}) {
    llama_context_params params = toy::llama().llama_context_default_params();
    params.n_ctx                = o.n_ctx;
    params.n_batch              = o.n_batch;
    params.n_ubatch             = o.n_ubatch;
    params.n_seq_max            = o.n_seq_max;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    params.type_k               = GGML_TYPE_F32;
    params.type_v               = GGML_TYPE_F32;
    params.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_DISABLED; // in f32 throughout: rows compare tightly
    if (o.tap) {
        params.cb_eval           = dspark_feature_tap_callback;
        params.cb_eval_user_data = o.tap;
    }
    llama_context * ctx = toy::llama().llama_init_from_model(model, params);
    ASSERT(ctx);
    return ctx;
}

static int32_t last_position(llama_context * ctx) {
    return toy::llama().llama_memory_seq_pos_max(toy::llama().llama_get_memory(ctx), 0);
}

// Decodes behind a session's back.
static bool decode_raw(llama_context * ctx, int32_t token, int32_t pos) {
    llama_seq_id   seq     = 0;
    llama_seq_id * seqs    = &seq;
    int32_t        n_seq   = 1;
    int8_t         logits  = 1;
    llama_batch    batch   = {};
    batch.n_tokens         = 1;
    batch.token            = &token;
    batch.pos              = &pos;
    batch.n_seq_id         = &n_seq;
    batch.seq_id           = &seqs;
    batch.logits           = &logits;
    return toy::llama().llama_decode(ctx, batch) == 0;
}

// Greedy text of llama.cpp alone, token after token: what every session below must write.
static ids greedy(llama_model * model, const ids & prompt, size_t n) {
    llama_context * ctx = open_context(model, {512, 32, 32, 1, nullptr});
    ids             text;
    for (size_t i = 0; i < prompt.size(); ++i) {
        ASSERT(decode_raw(ctx, prompt[i], (int32_t) i));
    }
    while (text.size() < n) {
        const float * logits = toy::llama().llama_get_logits_ith(ctx, 0);
        text.push_back((int32_t) (std::max_element(logits, logits + 64) - logits)); // the first of equals
        ASSERT(decode_raw(ctx, text.back(), (int32_t) (prompt.size() + text.size() - 1)));
    }
    toy::llama().llama_free(ctx);
    return text;
}

static const ids prompt = {1, 17, 42, 9, 33, 5, 60};

// --- sessions ---------------------------------------------------------------------------------------------------------

static void append(dspark_session * s, const ids & tokens) {
    for (size_t at = 0; at < tokens.size();) {
        int32_t n = 0;
        ASSERT_OK(dspark_session_append(s, tokens.data() + at, (int32_t) (tokens.size() - at), &n));
        ASSERT(n >= 1);
        at += (size_t) n;
    }
}

static int32_t next(dspark_session * s, int32_t n_draft_max = -1, llama_sampler * sampler = nullptr) {
    int32_t token = -1;
    ASSERT_OK(dspark_session_next(s, sampler, n_draft_max, &token));
    return token;
}

static ids generate(dspark_session * s, size_t n, int32_t n_draft_max = -1, llama_sampler * sampler = nullptr) {
    ids text;
    while (text.size() < n) {
        text.push_back(next(s, n_draft_max, sampler));
    }
    return text;
}

static dspark_stats stats_of(dspark_session * s) {
    dspark_stats stats;
    stats.struct_size = sizeof(stats);
    ASSERT_OK(dspark_session_get_stats(s, &stats));
    return stats;
}

static dspark_session_params default_params() {
    dspark_session_params params;
    dspark_session_params_init(&params);
    params.draft.n_threads = 1;
    return params;
}

static dspark_session * open_session(llama_context * ctx, const dspark_draft * draft) {
    dspark_session *            s      = nullptr;
    const dspark_session_params params = default_params();
    ASSERT_OK(dspark_session_create(ctx, draft, &params, &s));
    return s;
}

static dspark_session_state state_of(dspark_session * s) {
    dspark_session_state state;
    state.struct_size = sizeof(state);
    ASSERT_OK(dspark_session_get_state(s, &state));
    return state;
}

static int32_t n_tokens(dspark_session * s) {
    return state_of(s).n_tokens;
}

static ids tokens_of(dspark_session * s) {
    ids     tokens((size_t) n_tokens(s) + 1);
    int32_t n = 0;
    ASSERT_OK(dspark_session_get_tokens(s, tokens.data(), (int32_t) tokens.size(), &n));
    ASSERT(n == (int32_t) tokens.size() - 1);
    tokens.pop_back();
    return tokens;
}

// What holds between any two calls of a healthy session.
static void check(dspark_session * s, llama_context * ctx, const ids & sequence) {
    const int32_t n = n_tokens(s);
    ASSERT(n <= (int32_t) sequence.size());
    ASSERT(tokens_of(s) == ids(sequence.begin(), sequence.begin() + n));
    ASSERT(last_position(ctx) >= n - 1);
}

// --- a drafter that follows a script ------------------------------------------------------------------------------------

struct script {
    ids                                               sequence;        // prompt and greedy text: what is right
    std::function<int32_t(int32_t round)>             n_right;         // of each proposal, then one wrong token
    int32_t                                           length    = 5;   // of a proposal
    int32_t                                           n_max     = 8;
    ids                                               layers;          // features wanted
    size_t                                            n_embd    = 32;
    // seen
    int32_t                                           n_rounds  = 0;
    int32_t                                           n_past    = 0;
    std::vector<float>                                rows;            // every feature row that stands
    // failures to come: the call of that name after so many successes
    std::string                                       fail_what;
    int32_t                                           fail_in   = -1;
    std::function<void(int32_t n, int32_t * out_ids, int32_t * out_n)> wild; // replaces a proposal

    bool fails(const char * what) {
        if (fail_what != what || fail_in < 0) {
            return false;
        }
        return fail_in-- == 0;
    }

    static int on_append(void * self, const float * features, int32_t pos, int32_t n_rows) {
        script & s = *static_cast<script *>(self);
        ASSERT(pos == s.n_past); // in order, without gaps
        ASSERT(n_rows >= 1);
        if (s.fails("append")) {
            return 7;
        }
        const size_t n = (size_t) n_rows * s.layers.size() * s.n_embd;
        s.rows.insert(s.rows.end(), features, features + n);
        s.n_past += n_rows;
        return 0;
    }

    static int on_rewind(void * self, int32_t n_past) {
        script & s = *static_cast<script *>(self);
        ASSERT(n_past >= 0 && n_past <= s.n_past);
        if (s.fails("rewind")) {
            return 8;
        }
        s.n_past = n_past;
        s.rows.resize((size_t) n_past * s.layers.size() * s.n_embd);
        return 0;
    }

    static int on_propose(void * self, int32_t anchor, int32_t pos, int32_t n_max, int32_t * out_ids, int32_t * out_n) {
        script & s = *static_cast<script *>(self);
        ASSERT(pos == s.n_past && n_max >= 1 && n_max <= s.n_max);
        ASSERT(pos < (int32_t) s.sequence.size() && s.sequence[(size_t) pos] == anchor);
        if (s.fails("propose")) {
            return 9;
        }
        if (s.wild) {
            s.wild(n_max, out_ids, out_n);
            return 0;
        }
        const int32_t right = s.n_right ? s.n_right(s.n_rounds) : 1 << 20;
        *out_n              = std::min(s.length, n_max);
        for (int32_t k = 0; k < *out_n; ++k) {
            const size_t  at    = (size_t) (pos + 1 + k);
            const int32_t token = at < s.sequence.size() ? s.sequence[at] : 0;
            out_ids[k]          = k < right ? token : (token + 1) % 64;
        }
        ++s.n_rounds;
        return 0;
    }

    dspark_drafter table() {
        dspark_drafter d  = {};
        d.struct_size     = sizeof(d);
        d.user_data       = this;
        d.n_draft_max     = n_max;
        d.n_target_layers = (int32_t) layers.size();
        d.target_layers   = layers.data();
        d.append          = on_append;
        d.rewind          = on_rewind;
        d.propose         = on_propose;
        return d;
    }
};

static dspark_session * open_session(llama_context * ctx, script & s, const dspark_session_params & params = default_params()) {
    dspark_session *     session = nullptr;
    const dspark_drafter table   = s.table();
    ASSERT_OK(dspark_session_create_with_drafter(ctx, &table, &params, &session));
    return session;
}

static ids joined(const ids & a, const ids & b) {
    ids both = a;
    both.insert(both.end(), b.begin(), b.end());
    return both;
}

// --- tests ------------------------------------------------------------------------------------------------------------

// Each number of right drafts, constant and changing: the text, and every counter by hand.
static void test_accept_patterns(llama_model * model) {
    const ids       text = greedy(model, prompt, 100);
    llama_context * ctx  = open_context(model);
    const std::function<int32_t(int32_t)> patterns[] = {
        [](int32_t) { return 0; }, [](int32_t) { return 1; }, [](int32_t) { return 3; }, [](int32_t) { return 4; }, [](int32_t) { return 5; },
        [](int32_t round) { return round % 6; }, [](int32_t round) { return 5 - round % 2 * 5; },
    };
    for (const auto & pattern : patterns) {
        script d;
        d.sequence       = joined(prompt, text);
        d.n_right        = pattern;
        dspark_session * s = open_session(ctx, d);
        ASSERT(!state_of(s).disabled_reason);
        ASSERT(strcmp(state_of(s).feature_source, "none") == 0);
        append(s, prompt);
        ids seen;
        while (seen.size() < 60) {
            seen.push_back(next(s));
            check(s, ctx, d.sequence);
            ASSERT(n_tokens(s) == (int32_t) (prompt.size() + seen.size() - 1));
            ASSERT(state_of(s).n_draft_past == n_tokens(s));
        }
        ASSERT(seen == ids(text.begin(), text.begin() + 60));

        // by hand: the first token comes from the prompt's logits, then every round gives its accepted ones and one more
        int64_t n_rounds = 0, n_accepted = 0, n_emitted = 1, at[32] = {0};
        while (n_emitted < 60) {
            const int64_t right = std::min(pattern((int32_t) n_rounds++), 5);
            // a draft counts when the next call finds it equal to what was returned
            const int64_t taken = std::min(right, 60 - n_emitted - 1);
            n_accepted += taken;
            for (int64_t k = 0; k < taken; ++k) {
                ++at[k];
            }
            n_emitted += std::min(right + 1, 60 - n_emitted);
        }
        const dspark_stats stats = stats_of(s);
        ASSERT(stats.n_prompt == (int64_t) prompt.size() && stats.n_emitted == 60);
        ASSERT(stats.n_rounds == n_rounds && stats.n_rounds_drafted == n_rounds && stats.draft_n == 5 * n_rounds);
        ASSERT(stats.draft_n_accepted == n_accepted);
        for (int k = 0; k < 32; ++k) {
            ASSERT(stats.n_drafted_at[k] == (k < 5 ? n_rounds : 0) && stats.n_accepted_at[k] == at[k]);
        }
        ASSERT_OK(dspark_session_reset_stats(s));
        ASSERT(stats_of(s).n_rounds == 0 && stats_of(s).struct_size == sizeof(dspark_stats));

        // what was verified but not returned is dropped, and the next token is the same
        ASSERT_OK(dspark_session_settle(s));
        ASSERT(last_position(ctx) == n_tokens(s) - 1);
        ASSERT_OK(dspark_session_settle(s));
        ASSERT(generate(s, 5) == ids(text.begin() + 60, text.begin() + 65));

        const int32_t n = n_tokens(s);
        dspark_session_free(s);
        ASSERT(last_position(ctx) == n - 1); // the caller keeps the tokens, and no unaccepted draft
    }
    toy::llama().llama_free(ctx);
}

// What the last round looked like, token by token.
static void test_rounds(llama_model * model) {
    const ids       text = greedy(model, prompt, 40);
    llama_context * ctx  = open_context(model);
    script          d;
    d.sequence         = joined(prompt, text);
    d.n_right          = [](int32_t) { return 2; };
    dspark_session * s = open_session(ctx, d);
    dspark_round     round;
    round.struct_size = sizeof(round);
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_get_round(s, &round));
    append(s, prompt);
    next(s); // from the prompt's logits
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_get_round(s, &round));
    for (int32_t k = 0; k < 3; ++k) {
        ASSERT(next(s) == text[(size_t) k + 1]);
        ASSERT_OK(dspark_session_get_round(s, &round));
        ASSERT(round.position == (int32_t) prompt.size() && round.anchor == text[0]);
        ASSERT(round.n_drafted == 5 && round.n_sampled == k + 1 && round.n_accepted == k && !round.has_confidence);
        ASSERT(round.drafted[0] == text[1] && round.drafted[1] == text[2] && round.drafted[2] != text[3]);
    }
    next(s);
    ASSERT_OK(dspark_session_get_round(s, &round));
    ASSERT(round.position == (int32_t) prompt.size() + 3 && round.anchor == text[3] && round.n_accepted == 0);
    // fewer drafts in this round, none, and the session's limit again
    for (int32_t n_max : {1, 0, 3, 100, -1}) {
        ASSERT_OK(dspark_session_settle(s));
        next(s, n_max);
        ASSERT_OK(dspark_session_get_round(s, &round));
        ASSERT(round.n_drafted == (n_max < 0 ? 5 : std::min(n_max, 5)));
    }
    int32_t token = 5;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_next(s, nullptr, -2, &token));
    ASSERT(token == 0);
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// The toy draft (random: most of what it proposes is wrong), in every kind, through both feature sources.
static void test_draft(llama_model * model) {
    const ids          text = greedy(model, prompt, 100);
    toy::draft_options borrowed, rnn, plain;
    borrowed.own_embd = borrowed.own_output = false;
    borrowed.Vd                             = borrowed.V;
    rnn.markov                              = "rnn";
    rnn.anchor_first                        = false;
    plain.markov                            = nullptr;
    plain.confidence                        = 0;
    plain.Vd                                = plain.V;
    for (const toy::draft_options & o : {toy::draft_options(), borrowed, rnn, plain}) {
        dspark_draft * draft = nullptr;
        toy::make_draft(o).save(draft_path);
        ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
        ASSERT_OK(dspark_draft_check_target(draft, model));
        ids counters[2];
        for (bool use_tap : {false, true}) {
            dspark_feature_tap * tap = nullptr;
            ASSERT_OK(dspark_feature_tap_create(&tap));
            llama_context *       ctx    = open_context(model, {128, 32, 32, 1, use_tap ? tap : nullptr});
            dspark_session_params params = default_params();
            params.feature_source        = use_tap ? DSPARK_FEATURES_EVAL : DSPARK_FEATURES_AUTO;
            params.feature_tap           = use_tap ? tap : nullptr;
            dspark_session * s           = nullptr;
            ASSERT_OK(dspark_session_create(ctx, draft, &params, &s));
            ASSERT(strcmp(state_of(s).feature_source, use_tap ? "evaluation callback" : "layer taps") == 0);
            append(s, prompt);
            ids seen;
            while (seen.size() < 100) {
                seen.push_back(next(s));
                ASSERT(state_of(s).n_draft_past == n_tokens(s));
                dspark_round round;
                round.struct_size = sizeof(round);
                if (dspark_session_get_round(s, &round) == DSPARK_OK) {
                    counters[use_tap].insert(counters[use_tap].end(), round.drafted, round.drafted + round.n_drafted);
                    ASSERT(round.has_confidence == (o.confidence != 0));
                }
            }
            ASSERT(seen == text);
            ASSERT(stats_of(s).draft_n > 100);
            dspark_session_free(s);
            toy::llama().llama_free(ctx);
            dspark_feature_tap_free(tap);
        }
        ASSERT(counters[0] == counters[1]); // the same features, hence the same proposals
        dspark_draft_free(draft);
    }
}

// Features: the same rows whatever the batches, the ubatches and the source, and through rewinds.
static void test_features(llama_model * model) {
    const ids          text     = greedy(model, prompt, 60);
    const ids          sequence = joined(prompt, text);
    std::vector<float> expected;
    const auto compare = [&](const script & d, const char * what, float tolerance) {
        ASSERT(d.rows.size() == (size_t) d.n_past * d.layers.size() * 32);
        ASSERT(d.rows.size() <= expected.size());
        for (size_t i = 0; i < d.rows.size(); ++i) {
            if (!(std::fabs(d.rows[i] - expected[i]) <= tolerance * (1.0f + std::fabs(expected[i])))) {
                fprintf(stderr, "%s: %zu rows: feature %zu of position %zu is %g, expected %g\n", what, d.rows.size() / 64, i % 64, i / 64, (double) d.rows[i], (double) expected[i]);
                exit(1);
            }
        }
    };
    for (bool use_tap : {false, true}) {
        for (uint32_t n_ubatch : {32u, 3u, 1u}) {
            for (size_t n_chunk : {(size_t) 50, (size_t) 4, (size_t) 1}) {
                dspark_feature_tap * tap = nullptr;
                ASSERT_OK(dspark_feature_tap_create(&tap));
                llama_context *       ctx    = open_context(model, {128, 32, n_ubatch, 1, use_tap ? tap : nullptr});
                dspark_session_params params = default_params();
                params.feature_source        = use_tap ? DSPARK_FEATURES_EVAL : DSPARK_FEATURES_TAPS;
                params.feature_tap           = use_tap ? tap : nullptr;
                script d;
                d.sequence         = sequence;
                d.layers           = {1, 0};
                d.n_right          = [](int32_t round) { return round % 6; };
                dspark_session * s = open_session(ctx, d, params);
                for (size_t at = 0; at < 50; at += n_chunk) {
                    append(s, ids(sequence.begin() + (ptrdiff_t) at, sequence.begin() + (ptrdiff_t) std::min(at + n_chunk, (size_t) 50)));
                }
                ASSERT(d.n_past == 50);
                if (expected.empty()) {
                    // the first: whole prompt, layer taps; the embeddings are the file's
                    expected                = d.rows;
                    toy::gguf    g          = toy::make_target();
                    const auto & table      = g.at("token_embd.weight").data;
                    for (size_t pos = 0; pos < 50; ++pos) {
                        ASSERT(std::memcmp(expected.data() + pos * 64 + 32, table.data() + (size_t) sequence[pos] * 128, 128) == 0);
                    }
                }
                compare(d, use_tap ? "callback" : "taps", 1e-4f);
                // by rounds from the prompt on
                ASSERT_OK(dspark_session_rewind(s, (int32_t) prompt.size() - 1));
                ASSERT(d.n_past == (int32_t) prompt.size() - 1);
                append(s, {prompt.back()});
                ASSERT(generate(s, 40) == ids(text.begin(), text.begin() + 40));
                ASSERT_OK(dspark_session_settle(s));
                ASSERT(d.n_past == n_tokens(s));
                compare(d, use_tap ? "callback, in rounds" : "taps, in rounds", 1e-4f);
                dspark_session_free(s);
                toy::llama().llama_free(ctx);
                dspark_feature_tap_free(tap);
            }
        }
    }

    // the input "after the last layer" has no tap in this architecture; the callback has it
    script d;
    d.sequence            = sequence;
    d.layers              = {2};
    dspark_drafter  table = d.table();
    llama_context * ctx   = open_context(model);
    dspark_session * s    = reinterpret_cast<dspark_session *>(1);
    ASSERT_STATUS(DSPARK_ERROR_MISMATCH, dspark_session_create_with_drafter(ctx, &table, nullptr, &s));
    ASSERT(!s);
    // a layer that the target has not, and a tap that is not there
    for (int32_t layer : {3, -1, INT32_MAX, INT32_MIN}) {
        d.layers = {0, layer};
        table    = d.table();
        ASSERT_STATUS(DSPARK_ERROR_MISMATCH, dspark_session_create_with_drafter(ctx, &table, nullptr, &s));
    }
    d.layers                     = {0};
    table                        = d.table();
    dspark_session_params params = default_params();
    params.feature_source        = DSPARK_FEATURES_EVAL;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_create_with_drafter(ctx, &table, &params, &s));
    params.feature_source = 3;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_create_with_drafter(ctx, &table, &params, &s));
    // a tap that the context was not made with never delivers
    dspark_feature_tap * tap = nullptr;
    ASSERT_OK(dspark_feature_tap_create(&tap));
    params.feature_source = DSPARK_FEATURES_EVAL;
    params.feature_tap    = tap;
    ASSERT_OK(dspark_session_create_with_drafter(ctx, &table, &params, &s));
    int32_t n = 9;
    ASSERT_STATUS(DSPARK_ERROR_MISMATCH, dspark_session_append(s, prompt.data(), (int32_t) prompt.size(), &n));
    ASSERT(n == 0 && n_tokens(s) == 0 && last_position(ctx) == -1);
    dspark_session_free(s);
    dspark_feature_tap_free(tap);
    toy::llama().llama_free(ctx);

    dspark_feature_tap * own = nullptr;
    ASSERT_OK(dspark_feature_tap_create(&own));
    ctx                = open_context(model, {128, 32, 32, 1, own});
    d.layers           = {2, 0, 2};
    params.feature_tap = own;
    s                  = open_session(ctx, d, params);
    append(s, prompt);
    ASSERT(generate(s, 30) == ids(text.begin(), text.begin() + 30));
    ASSERT_OK(dspark_session_settle(s));
    ASSERT(d.n_past == n_tokens(s));
    for (size_t pos = 0; pos < (size_t) d.n_past; ++pos) { // wanted twice, given twice
        ASSERT(std::memcmp(d.rows.data() + pos * 96, d.rows.data() + pos * 96 + 64, 128) == 0);
    }
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
    dspark_feature_tap_free(own);
}

// To any length and on again, in and between rounds.
static void test_rewind(llama_model * model) {
    const ids       text     = greedy(model, prompt, 100);
    const ids       sequence = joined(prompt, text);
    llama_context * ctx      = open_context(model);
    script          d;
    d.sequence         = sequence;
    d.n_right          = [](int32_t round) { return round % 6; };
    dspark_session * s = open_session(ctx, d);
    append(s, prompt);
    generate(s, 30);
    for (int32_t n : {36, 35, 20, 8, 7, 3, 1, 0}) {
        const int32_t has = n_tokens(s);
        ASSERT(n <= has);
        ASSERT_OK(dspark_session_rewind(s, n));
        ASSERT(n_tokens(s) == n && last_position(ctx) == n - 1 && state_of(s).n_draft_past == n && d.n_past == n);
        int32_t token = 5;
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_next(s, nullptr, -1, &token)); // no logits are left
        ASSERT(token == 0);
        append(s, ids(sequence.begin() + n, sequence.begin() + n + 8));
        // stop in the middle of a round, at each place
        const ids seen = generate(s, 10 + (size_t) n % 5);
        ASSERT(std::equal(seen.begin(), seen.end(), sequence.begin() + n + 8));
        check(s, ctx, sequence);
    }
    for (int32_t n : {-1, n_tokens(s) + 1, INT32_MAX, INT32_MIN}) {
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_rewind(s, n));
    }
    // append in an open round drops the token that was not decoded
    ASSERT_OK(dspark_session_rewind(s, 0));
    append(s, prompt);
    generate(s, 8);
    const int32_t n = n_tokens(s);
    append(s, {63});
    ASSERT(n_tokens(s) == n + 1 && tokens_of(s)[(size_t) n] == 63 && last_position(ctx) == n);
    const ids other = tokens_of(s);
    d.sequence = joined(other, greedy(model, other, 40));
    ASSERT(generate(s, 20) == greedy(model, other, 20));
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// The same last token as plain decoding, at every place of the end in a block.
static void test_context_full(llama_model * model) {
    const ids text = greedy(model, prompt, 130);
    const auto run_to_end = [&](dspark_session * s, int32_t n_ctx) {
        ASSERT(state_of(s).n_ctx == n_ctx);
        append(s, prompt);
        ids           seen;
        int32_t       token  = 0;
        dspark_status status = DSPARK_OK;
        while ((status = dspark_session_next(s, nullptr, -1, &token)) == DSPARK_OK) {
            seen.push_back(token);
        }
        ASSERT_STATUS(DSPARK_ERROR_CONTEXT_FULL, status);
        ASSERT(token == 0);
        // every position is used, and the logits of the last one give one token more
        ASSERT(seen == ids(text.begin(), text.begin() + n_ctx - (ptrdiff_t) prompt.size() + 1));
        ASSERT(n_tokens(s) == n_ctx);
        // it stays so, and room makes it go on
        ASSERT_STATUS(DSPARK_ERROR_CONTEXT_FULL, dspark_session_next(s, nullptr, -1, &token));
        int32_t n = 7;
        ASSERT_STATUS(DSPARK_ERROR_CONTEXT_FULL, dspark_session_append(s, &token, 1, &n));
        ASSERT(n == 0 && n_tokens(s) == n_ctx);
        const int32_t back = (int32_t) prompt.size() + 2;
        const int32_t last = tokens_of(s)[(size_t) back];
        ASSERT_OK(dspark_session_rewind(s, back));
        append(s, {last});
        ASSERT(generate(s, 3) == ids(text.begin() + 3, text.begin() + 6));
    };
    for (int32_t n_ctx = 24; n_ctx <= 31; ++n_ctx) {
        for (int32_t n_right : {-1, 0, 2, 5}) {
            llama_context *       ctx    = open_context(model, {256, 32, 32, 1, nullptr});
            dspark_session_params params = default_params();
            params.n_ctx                 = n_ctx;
            script           d;
            dspark_session * s = nullptr;
            d.sequence         = joined(prompt, text);
            d.n_right          = [&](int32_t) { return n_right; };
            if (n_right < 0) {
                ASSERT_OK(dspark_session_create(ctx, nullptr, &params, &s));
            } else {
                s = open_session(ctx, d, params);
            }
            run_to_end(s, n_ctx);
            dspark_session_free(s);
            toy::llama().llama_free(ctx);
        }
    }
    // and where the context itself ends; with a second sequence, that is at half of its cells
    for (uint32_t n_seq_max : {1u, 2u}) {
        for (bool with_drafts : {false, true}) {
            llama_context *  ctx = open_context(model, {n_seq_max * 256, 32, 32, n_seq_max, nullptr});
            const ids        all = greedy(model, prompt, 300);
            script           d;
            dspark_session * s = nullptr;
            d.sequence         = joined(prompt, all);
            if (with_drafts) {
                s = open_session(ctx, d);
            } else {
                s = open_session(ctx, nullptr);
            }
            append(s, prompt);
            ids     seen;
            int32_t token = 0;
            while (dspark_session_next(s, nullptr, -1, &token) == DSPARK_OK) {
                seen.push_back(token);
            }
            ASSERT_STATUS(DSPARK_ERROR_CONTEXT_FULL, dspark_session_next(s, nullptr, -1, &token));
            ASSERT(seen == ids(all.begin(), all.begin() + 256 - (ptrdiff_t) prompt.size() + 1));
            dspark_session_free(s);
            toy::llama().llama_free(ctx);
        }
    }
}

// A prompt larger than the batch, and a batch smaller than a block.
static void test_batches(llama_model * model) {
    ids long_prompt;
    for (int32_t i = 0; i < 50; ++i) {
        long_prompt.push_back((i * 29 + 3) % 64);
    }
    const ids text = greedy(model, long_prompt, 40);
    for (uint32_t n_batch : {1u, 2u, 4u, 6u, 64u}) {
        llama_context * ctx = open_context(model, {128, n_batch, n_batch, 1, nullptr});
        script          d;
        d.sequence         = joined(long_prompt, text);
        d.n_right          = [](int32_t round) { return round % 6; };
        dspark_session * s = open_session(ctx, d);
        int32_t          n = 0;
        ASSERT_OK(dspark_session_append(s, long_prompt.data(), 50, &n));
        ASSERT(n >= 1 && n <= 50);
        append(s, ids(long_prompt.begin() + n, long_prompt.end()));
        ASSERT(generate(s, 40) == text);
        dspark_session_free(s);
        toy::llama().llama_free(ctx);
    }
}

static void test_bad_arguments(llama_model * model) {
    llama_context *  ctx   = open_context(model);
    dspark_session * s     = nullptr;
    const auto refused = [&](dspark_status status, const std::function<void(dspark_session_params &, dspark_drafter &)> & change, bool with_drafter) {
        dspark_session_params params = default_params();
        script                d;
        d.layers                     = {0};
        dspark_drafter        table  = d.table();
        change(params, table);
        s = reinterpret_cast<dspark_session *>(1);
        ASSERT_STATUS(status, with_drafter ? dspark_session_create_with_drafter(ctx, &table, &params, &s) : dspark_session_create(ctx, nullptr, &params, &s));
        ASSERT(!s);
        // the refused one has let go of the context
        dspark_session_free(open_session(ctx, nullptr));
    };
    for (bool with_drafter : {false, true}) {
        for (int32_t n_ctx : {-1, 100000, INT32_MAX, INT32_MIN}) {
            refused(DSPARK_ERROR_ARGUMENT, [&](auto & p, auto &) { p.n_ctx = n_ctx; }, with_drafter);
        }
        refused(DSPARK_ERROR_ARGUMENT, [](auto & p, auto &) { p.n_draft_max = -2; }, with_drafter);
        for (float min : {-0.1f, 1.1f, NAN, INFINITY}) {
            refused(DSPARK_ERROR_ARGUMENT, [&](auto & p, auto &) { p.confidence_min = min; }, with_drafter);
        }
        refused(DSPARK_ERROR_ARGUMENT, [](auto & p, auto &) { p.feature_source = -1; }, with_drafter);
        refused(DSPARK_ERROR_ARGUMENT, [](auto & p, auto &) { p.verify = 2; }, with_drafter);
    }
    for (int32_t n : {0, -1, 257, INT32_MAX}) {
        refused(DSPARK_ERROR_ARGUMENT, [&](auto &, auto & d) { d.n_draft_max = n; }, true);
    }
    refused(DSPARK_ERROR_ARGUMENT, [](auto &, auto & d) { d.n_target_layers = -1; }, true);
    refused(DSPARK_ERROR_ARGUMENT, [](auto &, auto & d) { d.target_layers = nullptr; }, true);
    refused(DSPARK_ERROR_ARGUMENT, [](auto &, auto & d) { d.propose = nullptr; }, true);

    s             = open_session(ctx, nullptr);
    int32_t token = 3, n = 3;
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_next(s, nullptr, -1, &token));
    ASSERT(strcmp(state_of(s).disabled_reason, "") != 0);
    append(s, prompt);
    for (int32_t wrong : {-1, 64, INT32_MAX, INT32_MIN}) {
        const int32_t tokens[] = {1, wrong};
        n                      = 3;
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_append(s, tokens, 2, &n));
        ASSERT(n == 0 && n_tokens(s) == (int32_t) prompt.size());
    }
    for (int32_t count : {0, -1, INT32_MIN}) {
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_append(s, &token, count, &n));
    }
    ASSERT(generate(s, 10) == greedy(model, prompt, 10)); // none of it was noticed
    // one context, one session
    dspark_session * second = reinterpret_cast<dspark_session *>(1);
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_create(ctx, nullptr, nullptr, &second));
    ASSERT(!second);
    ASSERT(generate(s, 5) == [&] { const ids all = greedy(model, prompt, 15); return ids(all.begin() + 10, all.end()); }());
    dspark_session_free(s);
    s = open_session(ctx, nullptr);
    ASSERT(last_position(ctx) == -1); // taken over empty
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// One call at a time: from a callback, from another thread, and after close().
static dspark_session *        busy_session;
static std::vector<dspark_status> seen_inside;

static void test_one_call_at_a_time(llama_model * model) {
    const ids       text = greedy(model, prompt, 60);
    llama_context * ctx  = open_context(model);
    script          d;
    d.sequence   = joined(prompt, text);
    d.wild       = [](int32_t, int32_t *, int32_t * n) {
        dspark_session_state state;
        dspark_stats         stats;
        int32_t              token = 0;
        state.struct_size = sizeof(state);
        stats.struct_size = sizeof(stats);
        const auto knock = [&] {
            seen_inside.push_back(dspark_session_get_state(busy_session, &state));
            seen_inside.push_back(dspark_session_get_stats(busy_session, &stats));
            seen_inside.push_back(dspark_session_next(busy_session, nullptr, -1, &token));
            seen_inside.push_back(dspark_session_append(busy_session, prompt.data(), 1, &token));
            seen_inside.push_back(dspark_session_rewind(busy_session, 0));
            seen_inside.push_back(dspark_session_settle(busy_session));
            seen_inside.push_back(dspark_session_reset_stats(busy_session));
        };
        knock();
        seen_inside.push_back(dspark_session_close(busy_session));
        std::thread(knock).join();
        *n = 0;
    };
    dspark_session * s = open_session(ctx, d);
    busy_session       = s;
    append(s, prompt);
    ASSERT(generate(s, 5) == ids(text.begin(), text.begin() + 5));
    ASSERT(seen_inside.size() == 4 * 15);
    for (dspark_status status : seen_inside) {
        ASSERT(status == DSPARK_ERROR_STATE);
    }
    // a close() from another thread waits for the call to end; afterwards all is refused and the context is free
    d.wild = nullptr;
    std::thread closer;
    d.n_right = [&](int32_t) {
        if (!closer.joinable()) {
            closer = std::thread([&] { ASSERT_OK(dspark_session_close(s)); });
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        return 3;
    };
    int32_t token = 5, n = 5;
    ASSERT_OK(dspark_session_next(s, nullptr, -1, &token));
    closer.join();
    ASSERT(token == text[5]);
    dspark_session_state state;
    state.struct_size = sizeof(state);
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_next(s, nullptr, -1, &token));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_append(s, prompt.data(), 1, &n));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_rewind(s, 0));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_settle(s));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_reset_stats(s));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_get_state(s, &state));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_get_tokens(s, &token, 1, &n));
    ASSERT(token == 0 && n == 0);
    ASSERT_OK(dspark_session_close(s));
    dspark_session * second = open_session(ctx, nullptr);
    dspark_session_free(s); // later than its successor's beginning
    append(second, prompt);
    ASSERT(generate(second, 5) == ids(text.begin(), text.begin() + 5));
    dspark_session_free(second);
    toy::llama().llama_free(ctx);
}

// Structs that a session fills: of every other size refused, and lists cut where the caller says.
template <typename T> static void each_wrong_size(dspark_session * s, dspark_status (*get)(dspark_session *, T *)) {
    for (size_t size = 0; size <= sizeof(T) + 64; ++size) {
        if (size != sizeof(T)) {
            std::vector<size_t> raw(std::max<size_t>(1, (size + sizeof(size_t) - 1) / sizeof(size_t)));
            raw[0] = size;
            ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, get(s, reinterpret_cast<T *>(raw.data())));
        }
    }
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, get(s, nullptr));
}

static void test_getters(llama_model * model) {
    llama_context *  ctx = open_context(model);
    dspark_session * s   = open_session(ctx, nullptr);
    append(s, prompt);
    generate(s, 3);
    each_wrong_size(s, dspark_session_get_state);
    each_wrong_size(s, dspark_session_get_stats);
    each_wrong_size(s, dspark_session_get_round);
    int32_t tokens[20], n = 0;
    ASSERT(state_of(s).n_tokens == 9 && state_of(s).pending == greedy(model, prompt, 3)[2] && state_of(s).n_ctx >= 128);
    for (int32_t n_max : {-5, 0, 1, 8, 9, 10, 20}) {
        std::fill(tokens, tokens + 20, -7);
        ASSERT_OK(dspark_session_get_tokens(s, tokens, n_max, &n));
        ASSERT(n == std::max(0, std::min(n_max, 9)));
        ASSERT(std::equal(tokens, tokens + std::min(n, 7), prompt.begin()) && tokens[n] == -7);
    }
    ASSERT_OK(dspark_session_rewind(s, 4));
    ASSERT(state_of(s).pending == -1);
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// Drafts that do not belong to the target.
static void test_mismatch(llama_model * model) {
    llama_context * ctx = open_context(model);
    const auto mismatch = [&](const toy::gguf & g, const char * said) {
        dspark_draft *   draft = nullptr;
        dspark_session * s     = reinterpret_cast<dspark_session *>(1);
        g.save(draft_path);
        ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
        ASSERT_STATUS(DSPARK_ERROR_MISMATCH, dspark_draft_check_target(draft, model));
        ASSERT(strstr(dspark_last_error(), said));
        ASSERT_STATUS(DSPARK_ERROR_MISMATCH, dspark_session_create(ctx, draft, nullptr, &s));
        ASSERT(!s);
        dspark_draft_free(draft);
        dspark_session_free(open_session(ctx, nullptr));
    };
    toy::draft_options o;
    o.H = 64;
    mismatch(toy::make_draft(o), "64");
    o   = {};
    o.V = 72;
    mismatch(toy::make_draft(o), "72");
    o               = {};
    o.target_layers = {0, 3};
    mismatch(toy::make_draft(o), "layer 3");
    o.own_embd = o.own_output = false; // a file that does not tell its vocabulary
    o.markov                  = nullptr;
    o.confidence              = 1;
    o.V                       = o.Vd = 100;
    o.target_layers           = {0, 1};
    mismatch(toy::make_draft(o), "mask token is 99");
    // one that was only inspected
    dspark_draft *   draft = nullptr;
    dspark_session * s     = reinterpret_cast<dspark_session *>(1);
    toy::make_draft().save(draft_path);
    ASSERT_OK(dspark_draft_inspect(draft_path, &draft));
    ASSERT_OK(dspark_draft_check_target(draft, model));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_create(ctx, draft, nullptr, &s));
    ASSERT(!s);
    dspark_draft_free(draft);
    toy::llama().llama_free(ctx);
}

// Token tables: of both, of one, of neither.
static void test_token_tables(llama_model * with) {
    toy::gguf                g      = toy::make_draft();
    std::vector<std::string> tokens;
    for (int i = 0; i < 64; ++i) {
        tokens.push_back("t" + std::to_string(i));
    }
    const auto check_with = [&](dspark_status status, const llama_model * target) {
        dspark_draft * draft = nullptr;
        g.save(draft_path);
        ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
        ASSERT_STATUS(status, dspark_draft_check_target(draft, target));
        ASSERT_STATUS(status, dspark_draft_check_target_file(draft, target_path)); // the file says what the model says
        dspark_draft_free(draft);
    };
    check_with(DSPARK_OK, with);
    g.set_strs("tokenizer.ggml.tokens", tokens);
    check_with(DSPARK_OK, with);
    tokens[63] = "u63";
    g.set_strs("tokenizer.ggml.tokens", tokens);
    check_with(DSPARK_ERROR_MISMATCH, with);
    ASSERT(strstr(dspark_last_error(), "u63") && strstr(dspark_last_error(), "t63"));
    // a target without a vocabulary has no texts to compare (llama.cpp would end the process if asked for one)
    llama_model *  without = load_target(toy::make_target(7, false));
    dspark_draft * draft   = nullptr;
    g.save(draft_path);
    ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
    const dspark_status status = dspark_draft_check_target(draft, without);
    ASSERT(status == DSPARK_OK || status == DSPARK_ERROR_MISMATCH);
    dspark_draft_free(draft);
    toy::make_draft().save(draft_path); // neither has one
    ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
    ASSERT_OK(dspark_draft_check_target(draft, without));
    llama_context *  ctx = open_context(without);
    dspark_session * s   = open_session(ctx, draft);
    append(s, prompt);
    ASSERT(generate(s, 20) == greedy(without, prompt, 20));
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
    dspark_draft_free(draft);
    toy::llama().llama_model_free(without);
}

// A host that decodes on the context while a session has it.
static void test_touched_from_outside(llama_model * model) {
    const ids       text = greedy(model, prompt, 40);
    llama_context * ctx  = open_context(model);
    script          d;
    d.sequence          = joined(prompt, text);
    d.n_right           = [](int32_t) { return 2; };
    dspark_session * s  = open_session(ctx, d);
    llama_memory_t   memory = toy::llama().llama_get_memory(ctx);
    int32_t          token = 5, n = 5;
    for (size_t n_before : {(size_t) 0, (size_t) 1, (size_t) 3, (size_t) 6}) {
        for (int what = 0; what < 3; ++what) {
            ASSERT_OK(dspark_session_rewind(s, 0));
            append(s, prompt);
            generate(s, n_before);
            if (what == 0) {
                toy::llama().llama_memory_clear(memory, true);
            } else if (what == 1) {
                ASSERT(toy::llama().llama_memory_seq_rm(memory, 0, (llama_pos) 4, -1));
            } else {
                ASSERT(decode_raw(ctx, 7, last_position(ctx) + 1));
            }
            ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_next(s, nullptr, -1, &token));
            ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_append(s, prompt.data(), 1, &n));
            ASSERT(token == 0 && n == 0);
            // the way back that the message gives
            ASSERT_OK(dspark_session_rewind(s, 0));
            ASSERT(last_position(ctx) == -1);
            append(s, prompt);
            ASSERT(generate(s, 12) == ids(text.begin(), text.begin() + 12));
        }
    }
    // closed while its memory is not what it was: nothing is removed that is not its own
    toy::llama().llama_memory_clear(memory, true);
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// Each callback fails once, at every occasion: the call says so, and repeated it goes on with the same text.
static void test_failing_callbacks(llama_model * model) {
    const ids       text = greedy(model, prompt, 60);
    llama_context * ctx  = open_context(model);
    for (const char * what : {"append", "propose"}) {
        for (int32_t when = 0; when < 8; ++when) {
            script d;
            d.sequence         = joined(prompt, text);
            d.n_right          = [](int32_t round) { return round % 6; };
            d.layers           = {0, 1};
            d.fail_what        = what;
            d.fail_in          = when;
            dspark_session * s = open_session(ctx, d);
            int              n_failed = 0;
            for (int32_t n = 0; n_tokens(s) < (int32_t) prompt.size();) {
                const int32_t       before = n_tokens(s);
                const dspark_status status = dspark_session_append(s, prompt.data() + before, 4 < (int32_t) prompt.size() - before ? 4 : (int32_t) prompt.size() - before, &n);
                if (status != DSPARK_OK) {
                    ASSERT_STATUS(DSPARK_ERROR_CALLBACK, status);
                    ASSERT(strstr(dspark_last_error(), what));
                    ASSERT(n == 0 && n_tokens(s) == before && d.n_past == before);
                    ASSERT_STATUS(DSPARK_OK, dspark_session_settle(s));
                    ASSERT(last_position(ctx) == before - 1);
                    ++n_failed;
                }
            }
            ids seen;
            while (seen.size() < 30) {
                int32_t             token  = 5;
                const int32_t       before = n_tokens(s);
                const dspark_status status = dspark_session_next(s, nullptr, -1, &token);
                if (status == DSPARK_OK) {
                    seen.push_back(token);
                    continue;
                }
                ASSERT_STATUS(DSPARK_ERROR_CALLBACK, status);
                ASSERT(token == 0 && n_tokens(s) == before);
                check(s, ctx, d.sequence);
                ++n_failed;
            }
            ASSERT(n_failed == 1);
            ASSERT(seen == ids(text.begin(), text.begin() + 30));
            // the drafter has every position and drafts on
            if (state_of(s).n_draft_past != n_tokens(s)) {
                fprintf(stderr, "after the failure of %s (%d) the drafter lacks positions: it has %d of %d\n", what, when,
                        state_of(s).n_draft_past, n_tokens(s));
                exit(1);
            }
            dspark_session_free(s);
        }
    }
    // a rewind that fails may be repeated
    {
        script d;
        d.sequence         = joined(prompt, text);
        dspark_session * s = open_session(ctx, d);
        append(s, prompt);
        generate(s, 12);
        d.fail_what = "rewind";
        d.fail_in   = 0;
        ASSERT_STATUS(DSPARK_ERROR_CALLBACK, dspark_session_rewind(s, 5));
        ASSERT_OK(dspark_session_rewind(s, 5));
        ASSERT(d.n_past == 5 && n_tokens(s) == 5);
        append(s, ids(prompt.begin() + 5, prompt.end()));
        ASSERT(generate(s, 20) == ids(text.begin(), text.begin() + 20));
        ASSERT(state_of(s).n_draft_past == n_tokens(s));
        dspark_session_free(s);
    }
    // proposals that are none
    const std::function<void(int32_t, int32_t *, int32_t *)> wild[] = {
        [](int32_t, int32_t *, int32_t * n) { *n = -1; },
        [](int32_t n_max, int32_t *, int32_t * n) { *n = n_max + 1; },
        [](int32_t, int32_t *, int32_t * n) { *n = INT32_MAX; },
        [](int32_t, int32_t * out, int32_t * n) { out[0] = 64; *n = 1; },
        [](int32_t, int32_t * out, int32_t * n) { out[0] = 1; out[1] = -1; *n = 2; },
        [](int32_t, int32_t * out, int32_t * n) { out[0] = INT32_MIN; *n = 1; },
    };
    for (const auto & each : wild) {
        script d;
        d.sequence         = joined(prompt, text);
        dspark_session * s = open_session(ctx, d);
        append(s, prompt);
        ASSERT(generate(s, 3) == ids(text.begin(), text.begin() + 3));
        ASSERT_OK(dspark_session_settle(s));
        d.wild        = each;
        int32_t token = 5;
        ASSERT_STATUS(DSPARK_ERROR_CALLBACK, dspark_session_next(s, nullptr, -1, &token));
        ASSERT(token == 0);
        ASSERT(next(s, 0) == text[3]); // without a draft it goes on,
        d.wild = nullptr;
        ASSERT(generate(s, 10) == ids(text.begin() + 4, text.begin() + 14)); // and with one
        ASSERT(stats_of(s).draft_n > 5);
        dspark_session_free(s);
    }
    // no proposal at all is fine, and so is a drafter that only proposes
    {
        script d;
        d.sequence           = joined(prompt, text);
        d.wild               = [](int32_t, int32_t *, int32_t * n) { *n = 0; };
        dspark_drafter table = d.table();
        table.append         = nullptr;
        table.rewind         = nullptr;
        table.propose        = [](void *, int32_t, int32_t, int32_t, int32_t * out, int32_t * n) { out[0] = 3; *n = 1; return 0; };
        dspark_session * s   = nullptr;
        ASSERT_OK(dspark_session_create_with_drafter(ctx, &table, nullptr, &s));
        append(s, prompt);
        ASSERT(generate(s, 20) == ids(text.begin(), text.begin() + 20));
        ASSERT_OK(dspark_session_rewind(s, 3));
        dspark_session_free(s);
        s = open_session(ctx, d);
        append(s, prompt);
        ASSERT(generate(s, 20) == ids(text.begin(), text.begin() + 20));
        ASSERT(stats_of(s).draft_n == 0 && stats_of(s).n_rounds == 19 && stats_of(s).n_rounds_drafted == 0);
        dspark_session_free(s);
    }
    toy::llama().llama_free(ctx);
}

// llama_decode fails (the host's abort callback ends it) in the prompt and in a round: the sequence is as before.
static bool abort_now = false;
static int  n_asked = 0, abort_at = -1;

static bool on_abort(void *) {
    return abort_now || n_asked++ == abort_at;
}

static void test_failing_decode(llama_model * model) {
    const ids text = greedy(model, prompt, 40);
    for (bool with_features : {false, true}) {
        llama_context * ctx = open_context(model);
        script          d;
        d.sequence = joined(prompt, text);
        d.n_right  = [](int32_t round) { return round % 6; };
        if (with_features) {
            d.layers = {0, 1};
        }
        dspark_session * s = open_session(ctx, d);
        toy::llama().llama_set_abort_callback(ctx, on_abort, nullptr);
        int32_t n = 5, token = 5;
        abort_now = true;
        ASSERT_STATUS(DSPARK_ERROR_BACKEND, dspark_session_append(s, prompt.data(), (int32_t) prompt.size(), &n));
        ASSERT(n == 0 && n_tokens(s) == 0 && last_position(ctx) == -1 && d.n_past == 0);
        abort_now = false;
        append(s, prompt);
        ids seen;
        for (int i = 0; seen.size() < 30; ++i) {
            abort_now                  = i % 4 == 3;
            const int32_t       before = n_tokens(s);
            const dspark_status status = dspark_session_next(s, nullptr, -1, &token);
            if (status == DSPARK_OK) {
                seen.push_back(token);
            } else {
                ASSERT_STATUS(DSPARK_ERROR_BACKEND, status);
                ASSERT(token == 0 && n_tokens(s) == before && last_position(ctx) == before - 1);
            }
            abort_now = false;
        }
        ASSERT(seen == ids(text.begin(), text.begin() + 30));
        ASSERT(state_of(s).n_draft_past == n_tokens(s));
        dspark_session_free(s);
        toy::llama().llama_free(ctx);
    }
}

// The same where a batch is decoded in parts: those before the failure are taken back too.
static void test_failing_decode_in_parts(llama_model * model) {
    const ids       text = greedy(model, prompt, 40);
    llama_context * ctx  = open_context(model, {128, 32, 2, 1, nullptr});
    script          d;
    d.sequence         = joined(prompt, text);
    d.layers           = {0, 1};
    dspark_session * s = open_session(ctx, d);
    toy::llama().llama_set_abort_callback(ctx, on_abort, nullptr);
    n_asked = 0;
    append(s, prompt);
    const int n_prompt = n_asked;
    ASSERT(n_prompt >= 4); // 4 parts
    int n_failed = 0;
    for (int at = 0; at < n_prompt; at += 1 + n_prompt / 40) {
        ASSERT_OK(dspark_session_rewind(s, 0));
        n_asked               = 0;
        abort_at              = at;
        int32_t             n = 5;
        const dspark_status status = dspark_session_append(s, prompt.data(), (int32_t) prompt.size(), &n);
        abort_at = -1;
        if (status != DSPARK_OK) {
            ASSERT_STATUS(DSPARK_ERROR_BACKEND, status);
            ASSERT(n == 0 && n_tokens(s) == 0 && last_position(ctx) == -1 && d.n_past == 0);
            ++n_failed;
        }
    }
    ASSERT(n_failed >= 4);
    ASSERT_OK(dspark_session_rewind(s, 0));
    append(s, prompt);
    ASSERT(generate(s, 2) == ids(text.begin(), text.begin() + 2));
    for (int at = 0; at < n_prompt; at += 1 + n_prompt / 40) {
        ASSERT_OK(dspark_session_settle(s));
        const int32_t n = n_tokens(s);
        if (n > (int32_t) prompt.size() + 20) {
            ASSERT_OK(dspark_session_rewind(s, (int32_t) prompt.size() + 1));
            append(s, {text[1]});
            ASSERT(next(s) == text[2]);
            continue;
        }
        int32_t token = 5;
        n_asked       = 0;
        abort_at      = at;
        const dspark_status status = dspark_session_next(s, nullptr, -1, &token);
        abort_at = -1;
        if (status != DSPARK_OK) {
            ASSERT_STATUS(DSPARK_ERROR_BACKEND, status);
            ASSERT(token == 0 && n_tokens(s) == n && last_position(ctx) == n - 1);
            token = next(s);
        }
        ASSERT(token == d.sequence[(size_t) n + 1]);
    }
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// A signal comes at a node of a graph, in the midst of a batch.  The batch is given up, quietly, the host's handler has run, and the
// call may be repeated.
static int              n_handled = 0;
static std::atomic<int> n_lines   = 0; // threads write to the log at once

static void on_signal(int) {
    ++n_handled;
}

static bool signal_or_go_on(void *) {
    if (n_asked++ == abort_at) {
        raise(SIGINT);
    }
    return dspark_interrupt_callback(nullptr);
}

static void test_interrupts(llama_model * model) {
    const ids       text = greedy(model, prompt, 40);
    llama_context * ctx  = open_context(model, {128, 32, 2, 1, nullptr});
    script          d;
    d.sequence         = joined(prompt, text);
    d.layers           = {0, 1};
    dspark_session * s = open_session(ctx, d);
    toy::llama().llama_set_abort_callback(ctx, signal_or_go_on, nullptr);
    toy::llama().llama_log_set([](ggml_log_level, const char *, void *) { ++n_lines; }, nullptr);
    void (*before)(int) = signal(SIGINT, on_signal);
    ASSERT(before != on_signal);
    ASSERT(!dspark_interrupts_end()); // without a begin

    // not asked for: the batch goes on
    n_asked = n_handled = 0;
    abort_at            = 3;
    append(s, prompt);
    const int n_prompt = n_asked;
    ASSERT(n_prompt >= 4 && n_handled == 1);

    for (int at = 0; at < n_prompt; at += 1 + n_prompt / 20) {
        ASSERT_OK(dspark_session_rewind(s, 0));
        n_asked = n_handled = 0;
        n_lines = 0;
        abort_at                      = at;
        int32_t n                     = 5;
        dspark_interrupts_begin();
        ASSERT_STATUS(DSPARK_ERROR_BACKEND, dspark_session_append(s, prompt.data(), (int32_t) prompt.size(), &n));
        ASSERT(dspark_interrupts_end());
        ASSERT(n_asked == at + 1 && n_handled == 1 && n_lines == 0);
        ASSERT(n == 0 && n_tokens(s) == 0 && last_position(ctx) == -1 && d.n_past == 0);
        abort_at = -1;
        append(s, prompt);
        ASSERT(generate(s, 4) == ids(text.begin(), text.begin() + 4));
        ASSERT_OK(dspark_session_settle(s));

        n_asked = n_handled = 0;
        abort_at            = at;
        const int32_t held  = n_tokens(s);
        int32_t       token = 5;
        dspark_interrupts_begin();
        const dspark_status status = dspark_session_next(s, nullptr, -1, &token);
        ASSERT(dspark_interrupts_end() == (status != DSPARK_OK));
        if (n_asked > at) {
            ASSERT_STATUS(DSPARK_ERROR_BACKEND, status);
            ASSERT(n_handled == 1 && n_tokens(s) == held && last_position(ctx) == held - 1);
        }
        abort_at = -1;
        ASSERT(status == DSPARK_OK || next(s) == text[4]);
    }

    // a handler that puts another in its place, "the second Ctrl-C ends it", keeps that
    ASSERT_OK(dspark_session_rewind(s, 0));
    signal(SIGINT, [](int) { signal(SIGINT, SIG_IGN); });
    n_asked   = 0;
    abort_at  = 0;
    int32_t n = 5;
    dspark_interrupts_begin();
    ASSERT_STATUS(DSPARK_ERROR_BACKEND, dspark_session_append(s, prompt.data(), (int32_t) prompt.size(), &n));
    ASSERT(dspark_interrupts_end());
    ASSERT(signal(SIGINT, SIG_IGN) == SIG_IGN);

    // one that the host ignores ends nothing
    n_asked = 0;
    dspark_interrupts_begin();
    append(s, prompt);
    ASSERT(!dspark_interrupts_end());

    // the log was given back
    n_lines = 0;
    ASSERT(!decode_raw(ctx, 1 << 20, 0) && n_lines > 0);

    signal(SIGINT, before);
    dspark_session_free(s);
    toy::llama().llama_free(ctx);
}

// With the same seed a sampler chooses the same tokens whatever is drafted.
static void test_samplers(llama_model * model) {
    const auto & llama = toy::llama();
    const auto   chain = [&](float temperature, uint32_t seed) {
        llama_sampler * sampler = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params());
        if (temperature > 0) {
            llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_temp(temperature));
            llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_dist(seed));
        } else {
            llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_greedy());
        }
        return sampler;
    };
    llama_context * ctx = open_context(model);

    // without a session the same tokens; what llama.cpp would end the process over is an error
    {
        dspark_session * s = open_session(ctx, nullptr);
        append(s, prompt);
        llama_sampler * sampler  = chain(2.0f, 1);
        llama_sampler * again    = chain(2.0f, 1);
        llama_sampler * chooser  = chain(0.0f, 1);
        llama_sampler * chooses_nothing = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params());
        llama_sampler * broken          = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params());
        llama.llama_sampler_chain_add(broken, nullptr);
        int32_t token = -1;
        ASSERT_OK(dspark_sample(ctx, again, -1, &token));
        ASSERT(token == next(s, 0, sampler));
        ASSERT_OK(dspark_sample(ctx, chooser, -1, &token));
        ASSERT(token == greedy(model, prompt, 1)[0]);
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_sample(ctx, chooses_nothing, -1, &token));
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_sample(ctx, chooser, 1000, &token));
        for (llama_sampler * wrong : {broken, (llama_sampler *) nullptr}) {
            ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_sample(ctx, wrong, -1, &token));
        }
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_next(s, broken, -1, &token));
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_next(s, chooses_nothing, -1, &token));
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_sample(nullptr, chooser, -1, &token));
        ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_sample(ctx, chooser, -1, nullptr));
        dspark_session_free(s);
        for (llama_sampler * made : {sampler, again, chooser, chooses_nothing, broken}) {
            llama.llama_sampler_free(made);
        }
    }

    ids first;
    for (float temperature : {0.0f, 2.0f}) {
        for (uint32_t seed : {1u, 2u}) {
            llama_sampler *  sampler  = chain(temperature, seed);
            dspark_session * s        = open_session(ctx, nullptr);
            append(s, prompt);
            const ids expected = generate(s, 60, -1, sampler);
            dspark_session_free(s);
            llama.llama_sampler_free(sampler);
            ASSERT(temperature > 0 || expected == greedy(model, prompt, 60));
            ASSERT(temperature <= 0 || expected != first);
            first = expected;
            for (int32_t n_right : {0, 2, 5}) {
                script d;
                d.sequence = joined(joined(prompt, expected), ids(10, 0));
                d.n_right  = [&](int32_t) { return n_right; };
                sampler    = chain(temperature, seed);
                s          = open_session(ctx, d);
                append(s, prompt);
                ASSERT(generate(s, 60, -1, sampler) == expected);
                dspark_session_free(s);
                llama.llama_sampler_free(sampler);
            }
        }
    }
    llama.llama_free(ctx);
}

// Rejection sampling: one seed, one text; rewinding, settling and a sampler that chooses itself in between do no harm.
static void test_rejection(llama_model * model) {
    const auto &    llama = toy::llama();
    dspark_draft *  draft = nullptr;
    toy::make_draft().save(draft_path);
    ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
    llama_context * ctx = open_context(model);
    ids             first;
    for (uint32_t seed : {1u, 1u, 2u}) {
        llama_sampler * sampler = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params());
        llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_temp(1.0f));
        llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_dist(seed));
        dspark_session_params params = default_params();
        params.verify                = DSPARK_VERIFY_REJECTION;
        dspark_session * s           = nullptr;
        ASSERT_OK(dspark_session_create(ctx, draft, &params, &s));
        append(s, prompt);
        ids text;
        for (int i = 0; i < 100; ++i) {
            int32_t token = -1;
            ASSERT_OK(dspark_session_next(s, i % 10 == 9 ? nullptr : sampler, -1, &token));
            text.push_back(token);
            ASSERT((state_of(s).match_reason != nullptr) == (i % 10 == 9));
            if (i % 25 == 13) {
                ASSERT_OK(dspark_session_settle(s));
            }
            if (i == 50) {
                ASSERT_OK(dspark_session_rewind(s, (int32_t) prompt.size()));
                append(s, {1});
            }
        }
        const dspark_stats stats = stats_of(s);
        ASSERT(stats.n_by_rejection > 20 && stats.draft_n_accepted > 0 && stats.draft_n_accepted < stats.draft_n);
        ASSERT(first.empty() || (text == first) == (seed == 1));
        first = text;
        dspark_session_free(s);
        llama.llama_sampler_free(sampler);
    }
    llama.llama_free(ctx);
    dspark_draft_free(draft);
}

// confidence_min ends a proposal; the text does not change.
static void test_confidence(llama_model * model) {
    const ids      text  = greedy(model, prompt, 60);
    dspark_draft * draft = nullptr;
    toy::make_draft().save(draft_path);
    ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
    llama_context * ctx = open_context(model);
    int64_t         n_drafted_before = INT64_MAX;
    for (float min : {0.0f, 0.3f, 0.6f, 1.0f}) {
        dspark_session_params params = default_params();
        params.confidence_min        = min;
        dspark_session * s           = nullptr;
        ASSERT_OK(dspark_session_create(ctx, draft, &params, &s));
        append(s, prompt);
        ids seen;
        while (seen.size() < 60) {
            seen.push_back(next(s));
            dspark_round round;
            round.struct_size = sizeof(round);
            if (dspark_session_get_round(s, &round) == DSPARK_OK) {
                for (int32_t k = 0; k < round.n_drafted; ++k) {
                    ASSERT(1.0f / (1.0f + std::exp(-round.confidence_logits[k])) >= min);
                }
            }
        }
        ASSERT(seen == text);
        const dspark_stats stats = stats_of(s);
        ASSERT(stats.draft_n < n_drafted_before);
        n_drafted_before = stats.draft_n;
        ASSERT(min > 0.0f || stats.draft_n == 5 * stats.n_rounds);
        dspark_session_free(s);
    }
    ASSERT(n_drafted_before == 0);
    // the session's own limit; 0 is plain
    for (int32_t n_max : {0, 1, 3, 100}) {
        dspark_session_params params = default_params();
        params.n_draft_max           = n_max;
        dspark_session * s           = nullptr;
        ASSERT_OK(dspark_session_create(ctx, draft, &params, &s));
        append(s, prompt);
        ASSERT(generate(s, 60) == text);
        const dspark_stats stats = stats_of(s);
        ASSERT(stats.draft_n == stats.n_rounds * std::min(n_max, 5));
        dspark_session_free(s);
    }
    toy::llama().llama_free(ctx);
    dspark_draft_free(draft);
}

// Handles go in any order that the header allows.
static void test_lifetimes(llama_model * model) {
    const ids      text  = greedy(model, prompt, 20);
    dspark_draft * draft = nullptr;
    toy::make_draft().save(draft_path);
    ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
    llama_context *  ctx = open_context(model);
    dspark_session * s   = open_session(ctx, draft);
    dspark_draft_free(draft); // the session keeps its own
    ASSERT(remove(draft_path) == 0);
    append(s, prompt);
    ASSERT(generate(s, 20) == text);
    dspark_session_free(s); // in the middle of a round
    // the context is the caller's again
    const int32_t n = last_position(ctx);
    ASSERT(decode_raw(ctx, 3, n + 1));
    toy::llama().llama_free(ctx);
    // a drafter's table is copied; another context at the same address is another context
    script d;
    d.sequence = joined(prompt, greedy(model, prompt, 40));
    for (int i = 0; i < 4; ++i) {
        ctx = open_context(model);
        d.n_past = 0;
        d.rows.clear();
        s = open_session(ctx, d);
        append(s, prompt);
        ASSERT(generate(s, 20) == text);
        dspark_session_free(s);
        toy::llama().llama_free(ctx);
    }
}

// Two sessions in two threads on one model and one draft.
static void test_side_by_side(llama_model * model) {
    dspark_draft * draft = nullptr;
    toy::make_draft().save(draft_path);
    ASSERT_OK(dspark_draft_load(draft_path, nullptr, &draft));
    const ids prompts[] = {prompt, {9, 8, 7, 6}};
    const ids texts[]   = {greedy(model, prompts[0], 80), greedy(model, prompts[1], 80)};
    ids       seen[2];
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            llama_context *  ctx = open_context(model);
            dspark_session * s   = open_session(ctx, draft);
            append(s, prompts[i]);
            seen[i] = generate(s, 80);
            dspark_session_free(s);
            toy::llama().llama_free(ctx);
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    ASSERT(seen[0] == texts[0] && seen[1] == texts[1]);
    dspark_draft_free(draft);
}

int main() {
    toy::bind();
    toy::llama().llama_backend_init();
    llama_model * model = load_target(toy::make_target(7, true));

    const ids text = greedy(model, prompt, 100);
    ASSERT(std::count(text.begin(), text.end(), text[50]) < 50); // worth predicting

    test_accept_patterns(model);
    test_rounds(model);
    test_draft(model);
    test_features(model);
    test_rewind(model);
    test_context_full(model);
    test_batches(model);
    test_bad_arguments(model);
    test_one_call_at_a_time(model);
    test_getters(model);
    test_mismatch(model);
    test_touched_from_outside(model);
    test_failing_decode(model);
    test_failing_decode_in_parts(model);
    test_interrupts(model);
    test_samplers(model);
    test_rejection(model);
    test_confidence(model);
    test_lifetimes(model);
    test_side_by_side(model);
    test_failing_callbacks(model);
    test_token_tables(model);

    toy::llama().llama_model_free(model);
    remove(draft_path);
    remove(target_path);
    return 0;
}
