// The input is a sequence of calls of the C API with wild arguments, of which the pointers alone are what the header asks for (or NULL).
// Every call returns one of its statuses, errors have a sentence and clear their outputs, and what a session chose in the end is the
// target's own choice.
#include "fuzz_target.h"

#include <cmath>
#include <memory>

namespace {

struct machine {
    fuzz::bytes            in;
    fuzz::pair &           pair     = fuzz::pair::get();
    dspark_draft *         draft    = nullptr; // loaded here, may be gone
    dspark_draft_context * context  = nullptr;
    dspark_session *       session  = nullptr;
    dspark_feature_tap *   tap      = nullptr;
    bool                   is_told  = false; // the session was told of tokens that the memory need not hold
    std::vector<float>     features = toy::random_values((size_t) 40 * 64, 5);
    std::vector<float>     logits   = std::vector<float>(64 * 8);
    std::vector<uint8_t>   saved    = {0};

    machine(const uint8_t * data, size_t size) : in(data, size) {}

    ~machine() {
        dspark_session_free(session);
        dspark_draft_context_free(context);
        dspark_draft_free(draft);
        dspark_feature_tap_free(tap);
    }

    static bool check(dspark_status status) {
        ASSERT(status >= DSPARK_OK && status < DSPARK_ERROR_INTERNAL);
        ASSERT(status == DSPARK_OK || dspark_last_error()[0] != '\0');
        return status == DSPARK_OK;
    }

    template <typename T> T * or_null(T * pointer) { return in.chance(12) ? nullptr : pointer; }

    template <typename T> size_t size_of() { return in.chance(12) ? (size_t) in.int32() : sizeof(T); }

    // A getter's struct of exactly its size, on the heap so that a sanitizer sees a write behind it.
    template <typename T, typename Call> void get(Call && call) {
        auto out         = std::make_unique<T>();
        out->struct_size = size_of<T>();
        const bool fits  = out->struct_size == sizeof(T);
        const bool ok    = check(call(or_null(out.get())));
        ASSERT(!ok || fits);
    }

    // Token ids, mostly of the vocabulary.
    std::vector<int32_t> tokens(size_t n) {
        std::vector<int32_t> ids(n + 1); // a pointer even for none
        for (int32_t & id : ids) {
            id = in.near(0, 63);
        }
        return ids;
    }

    dspark_draft_context_params context_params() {
        dspark_draft_context_params p;
        dspark_draft_context_params_init(&p);
        p.struct_size = size_of<dspark_draft_context_params>();
        p.n_threads   = in.chance(8) ? in.near(-1, 0) : 1;
        if (p.n_threads > 4 && p.n_threads <= 512) {
            p.n_threads = 1; // allowed, but this machine is not that large
        }
        if (in.chance(4)) {
            p.type_k = in.near(0, 40);
            p.type_v = in.near(0, 40);
        }
        p.n_ctx = in.chance(3) ? in.near(0, 60) : 0;
        return p;
    }

    dspark_session_params session_params(std::vector<int32_t> & kept) {
        dspark_session_params p;
        dspark_session_params_init(&p);
        p.struct_size    = size_of<dspark_session_params>();
        p.n_ctx          = in.chance(3) ? in.near(0, 64) : 0;
        p.n_draft_max    = in.chance(3) ? in.near(-1, 8) : -1;
        const float part = (float) in.near(0, 10) / 10.0f;
        p.confidence_min = in.chance(20) ? NAN : in.chance(4) ? part : 0.0f;
        p.auto_depth     = in.chance(2);
        p.feature_source = in.near(0, 2);
        p.feature_tap    = in.chance(3) ? tap : nullptr;
        p.logits_all     = in.chance(4);
        p.draft          = context_params();
        if (in.chance(6)) {
            kept       = tokens(8);
            p.tokens   = or_null(kept.data());
            p.n_tokens = std::min(in.near(-1, 8), 9);
        }
        return p;
    }

    void load_draft() {
        const std::string    folder  = "/tmp/dspark_fuzz_no_such_folder";
        const char * const   paths[] = {nullptr, "", ".", "/dev/null", folder.c_str(), "/proc/self/exe"};
        dspark_draft_params  params;
        dspark_draft_params_init(&params);
        params.struct_size = size_of<dspark_draft_params>();
        params.device      = in.chance(2) ? "CPU" : in.chance(2) ? nullptr : "no such device";
        dspark_draft * out = reinterpret_cast<dspark_draft *>(1);
        const char *   at  = paths[in.byte() % 6];
        ASSERT(!check(in.chance(2) ? dspark_draft_load(at, or_null(&params), &out) : dspark_draft_inspect(at, &out)));
        ASSERT(!out);
        check(dspark_draft_check_target_file(or_null(pair.draft), at));
        check(dspark_draft_check_target(or_null(pair.draft), or_null(pair.model)));
    }

    void make_context() {
        dspark_draft_context_free(context);
        context                             = nullptr;
        const dspark_draft_context_params p = context_params();
        check(dspark_draft_context_create(or_null(pair.draft), or_null(pair.model), or_null(&p), &context));
    }

    static int on_propose(void * self, int32_t anchor, int32_t, int32_t n_max, int32_t * ids, int32_t * n) {
        machine & m = *static_cast<machine *>(self);
        *n          = std::min(m.in.near(0, 4), n_max + 1);
        for (int32_t i = 0; i < std::min(*n, n_max); ++i) {
            ids[i] = m.in.near(0, 63);
        }
        dspark_session_state state;
        state.struct_size = sizeof(state);
        // from inside of a call
        ASSERT(m.session == nullptr || !check(dspark_session_get_state(m.session, &state)));
        return anchor >= 0 && m.in.chance(10) ? 1 : 0;
    }

    static int on_append(void * self, const float * rows, int32_t, int32_t n_rows) {
        ASSERT(n_rows >= 1 && (rows || n_rows));
        return static_cast<machine *>(self)->in.chance(20) ? 1 : 0;
    }

    static int on_rewind(void * self, int32_t) { return static_cast<machine *>(self)->in.chance(20) ? 1 : 0; }

    void make_session() {
        if (!in.chance(6)) { // else a second one on the context
            dspark_session_free(session);
            session = nullptr;
        }
        std::vector<int32_t>        kept;
        const dspark_session_params p   = session_params(kept);
        dspark_session *            out = reinterpret_cast<dspark_session *>(1);
        if (in.chance(3)) {
            const int32_t  layers[] = {in.near(0, 2), in.near(0, 2), 1};
            dspark_drafter d        = {};
            d.struct_size           = size_of<dspark_drafter>();
            d.user_data             = this;
            d.n_draft_max           = in.near(1, 8);
            d.n_target_layers       = std::min(in.near(0, 3), 3);
            d.target_layers         = or_null(layers);
            d.append                = or_null(&on_append);
            d.rewind                = or_null(&on_rewind);
            d.propose               = or_null(&on_propose);
            check(dspark_session_create_with_drafter(or_null(pair.ctx), or_null(&d), or_null(&p), &out));
        } else {
            check(dspark_session_create(or_null(pair.ctx), in.chance(4) ? nullptr : pair.draft, or_null(&p), &out));
        }
        if (out) {
            dspark_session_state state;
            state.struct_size = sizeof(state);
            ASSERT(!session || !check(dspark_session_get_state(session, &state))); // it was closed: else the context was its own
            dspark_session_free(session);
            session = out;
            is_told = p.n_tokens > 0;
        }
    }

    void decode() {
        std::vector<int32_t> ids = tokens((size_t) (in.byte() % 24));
        int32_t              n   = 77;
        const int32_t        given = std::min(in.chance(8) ? in.near(-1, 3) : (int32_t) ids.size() - 1, (int32_t) ids.size() - 1);
        const bool           ok  = check(dspark_session_append(session, or_null(ids.data()), given, or_null(&n)));
        ASSERT(n == 77 || (ok ? n >= 1 && n <= 16 : n == 0));
    }

    void next(int times) {
        for (int i = 0; i < times; ++i) {
            int32_t    token = 77;
            const bool ok    = check(dspark_session_next(session, nullptr, in.chance(3) ? in.near(-1, 6) : -1, or_null(&token)));
            ASSERT(token == 77 || (ok ? token >= 0 && token < 64 : token == 0));
        }
    }

    void adopt() {
        std::vector<int32_t> ids = tokens((size_t) (in.byte() % 24));
        int32_t              n   = std::min(in.near(0, 20), (int32_t) ids.size());
        if (in.chance(2)) { // what it has already
            int32_t n_held = 0;
            if (check(dspark_session_get_tokens(session, ids.data(), (int32_t) ids.size(), &n_held))) {
                n = std::min(n, n_held);
            }
        } else {
            is_told = true;
        }
        check(dspark_session_adopt(session, or_null(ids.data()), n));
    }

    void save_and_load() {
        uint8_t * data = reinterpret_cast<uint8_t *>(1);
        size_t    size = 77;
        if (check(dspark_session_save(session, or_null(&data), or_null(&size)))) {
            saved.assign(data, data + size);
        } else {
            ASSERT((!data || data == reinterpret_cast<uint8_t *>(1)) && (size == 0 || size == 77));
            is_told = true; // an older state, perhaps of other tokens, comes back
            data    = nullptr;
        }
        dspark_saved_free(data);
        const size_t n = in.chance(4) ? in.byte() % saved.size() : saved.size();
        check(dspark_session_load(session, or_null(saved.data()), n));
    }

    void read_state() {
        get<dspark_session_state>([&](dspark_session_state * out) { return dspark_session_get_state(session, out); });
        get<dspark_stats>([&](dspark_stats * out) { return dspark_session_get_stats(session, out); });
        get<dspark_round>([&](dspark_round * out) { return dspark_session_get_round(session, out); });
        get<dspark_depth_state>([&](dspark_depth_state * out) { return dspark_session_get_depth(session, out); });
        get<dspark_draft_context_state>([&](dspark_draft_context_state * out) { return dspark_draft_context_get_state(context, out); });
        get<dspark_draft_info>([&](dspark_draft_info * out) { return dspark_draft_get_info(or_null(pair.draft), out); });
        get<dspark_kernels_state>([&](dspark_kernels_state * out) { return dspark_kernels_get_state(out); });
        std::vector<int32_t> ids(8);
        int32_t              n = 77;
        check(dspark_session_get_tokens(session, or_null(ids.data()), std::min(in.near(0, 8), 8), or_null(&n)));
        ASSERT(n == 77 || (n >= 0 && n <= 8));
    }

    void call_one() {
        switch (in.byte() % 20) {
            case 0: load_draft(); break;
            case 1: make_context(); break;
            case 2: check(dspark_draft_context_append(context, or_null(features.data()), std::min(in.near(1, 40), 40))); break;
            case 3: check(dspark_draft_context_rewind(context, in.near(0, 40))); break;
            case 4: {
                dspark_proposal p;
                p.n           = 77;
                const bool ok = check(dspark_draft_context_propose(context, in.near(0, 63), in.near(1, 8), in.chance(2) ? logits.data() : nullptr, or_null(&p)));
                ASSERT(p.n == 77 || (ok ? p.n >= 0 && p.n <= DSPARK_BLOCK_MAX : p.n == 0));
                break;
            }
            case 5: check(dspark_draft_scatter_logits(or_null(pair.draft), or_null(features.data()), or_null(logits.data()), in.chance(3) ? 64 : std::min(in.int32(), 512))); break;
            case 6: case 7: make_session(); break;
            case 8: case 9: decode(); break;
            case 10: case 11: case 12: next(1 + in.byte() % 6); break;
            case 13: check(dspark_session_settle(session)); break;
            case 14: check(dspark_session_rewind(session, in.near(0, 40))); break;
            case 15: adopt(); break;
            case 16: save_and_load(); break;
            case 17: read_state(); break;
            case 18:
                check(dspark_session_set_auto_depth(session, in.chance(2)));
                check(dspark_session_reset_stats(session));
                if (in.chance(4)) {
                    check(in.chance(2) ? dspark_session_close(session) : dspark_draft_context_close(context));
                }
                break;
            default:
                ASSERT(dspark_status_name((dspark_status) in.int32()));
                dspark_device_name(in.near(-2, 2));
                dspark_device_description(in.near(-2, 2));
                dspark_device_kind(in.near(-2, 2));
                dspark_draft_meta(or_null(pair.draft), in.chance(2) ? "general.name" : nullptr);
                ASSERT(!check(dspark_kernels_install(3 + in.byte(), 0)));
                if (!tap && !session) {
                    check(dspark_feature_tap_create(&tap));
                }
                dspark_feature_tap_callback(nullptr, true, tap);
                break;
        }
    }

    // The pending token is the target's first choice after the session's tokens.
    void check_choice() {
        dspark_session_state state;
        state.struct_size = sizeof(state);
        if (is_told || dspark_session_get_state(session, &state) != DSPARK_OK || state.pending < 0 || state.n_tokens < 1) {
            return;
        }
        std::vector<int32_t> ids((size_t) state.n_tokens);
        int32_t              n = 0;
        ASSERT_OK(dspark_session_get_tokens(session, ids.data(), state.n_tokens, &n));
        dspark_session_free(session);
        session = nullptr;
        dspark_session_params p;
        dspark_session_params_init(&p);
        ASSERT_OK(dspark_session_create(pair.ctx, nullptr, &p, &session));
        for (int32_t at = 0; at < state.n_tokens; at += n) {
            ASSERT_OK(dspark_session_append(session, ids.data() + at, state.n_tokens - at, &n));
        }
        int32_t token = -1;
        ASSERT_OK(dspark_session_next(session, nullptr, 0, &token));
        const int32_t row = (state.n_tokens - 1) % 16; // of the last batch of 16
        const float * now = toy::llama().llama_get_logits_ith(pair.ctx, row);
        ASSERT(now && now[state.pending] > now[token] - 0.05f); // rows of other batches round differently
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    machine m(data, size);
    for (int i = 0; i < 64 && m.in.left() > 0; ++i) {
        m.call_one();
    }
    m.check_choice();
    return 0;
}
