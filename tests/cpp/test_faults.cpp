// Whatever fails inside of a call, the call says so or goes on without the draft; the session is usable after it, and its text is right.
//
// Stands for: an allocation that fails between a decode and its record, ggml's and llama.cpp's error codes, numbers that are none, and
// a draft that fails by itself and takes the generation with it.  A fault strikes once a run, at one occasion after the other.
#include "llama_binding.h"
#include "test.h"
#include "toy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include <execinfo.h>
#include <link.h>
#include <unistd.h>

// --- an allocation that fails ---------------------------------------------------------------------------------------------

// The k-th call of operator new from here throws, unless it is llama.cpp's or ggml's own: what they do then is not ours to test.
static int64_t n_until_failure = -1;
static bool    has_struck      = false;
static bool    is_inside       = false; // of a call of the library, not in the test

static std::vector<std::pair<uintptr_t, uintptr_t>> foreign; // address ranges

static int note_library(dl_phdr_info * info, size_t, void *) {
    const char * name = info->dlpi_name ? info->dlpi_name : "";
    if (strstr(name, "libllama") || strstr(name, "libggml") || strstr(name, "libgomp")) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
                const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                foreign.emplace_back(begin, begin + info->dlpi_phdr[i].p_memsz);
            }
        }
    }
    return 0;
}

static bool is_foreign() {
    void *    frames[64];
    const int n = backtrace(frames, 64);
    for (int i = 0; i < n; ++i) {
        for (const auto & [begin, end] : foreign) {
            if ((uintptr_t) frames[i] >= begin && (uintptr_t) frames[i] < end) {
                return true;
            }
        }
    }
    return false;
}

// not inlined: GCC would see a pair of malloc() and delete, and take it for a mistake
[[gnu::noinline]] void * operator new(size_t size) {
    if (is_inside && n_until_failure >= 0 && n_until_failure-- == 0) {
        if (is_foreign()) {
            n_until_failure = 0; // the next one
        } else {
            has_struck = true;
            throw std::bad_alloc();
        }
    }
    void * p = malloc(size ? size : 1);
    if (!p) {
        throw std::bad_alloc();
    }
    return p;
}

[[gnu::noinline]] void * operator new(size_t size, const std::nothrow_t &) noexcept { return malloc(size ? size : 1); }
[[gnu::noinline]] void * operator new[](size_t size) { return operator new(size); }
[[gnu::noinline]] void operator delete(void * p) noexcept { free(p); }
[[gnu::noinline]] void operator delete(void * p, size_t) noexcept { free(p); }
[[gnu::noinline]] void operator delete[](void * p) noexcept { free(p); }
[[gnu::noinline]] void operator delete[](void * p, size_t) noexcept { free(p); }

// --- functions of llama.cpp and ggml that fail ------------------------------------------------------------------------------

// A bound function is replaced, and one call of it, `at` calls from now, does something else.
static int  at         = -1;
static int  decode_code = 0;
static bool strikes() {
    const bool now = at >= 0 && at-- == 0;
    has_struck     = has_struck || now;
    return now;
}

#define REAL(name) static decltype(dspark::name) real_##name
REAL(ggml_backend_sched_graph_compute);
REAL(ggml_backend_sched_alloc_graph);
REAL(ggml_backend_sched_new);
REAL(ggml_backend_alloc_ctx_tensors_from_buft);
REAL(ggml_backend_dev_init);
REAL(ggml_init);
REAL(gguf_init_from_file);
REAL(llama_decode);
REAL(llama_get_logits_ith);
static decltype(dspark::llama_get_embeddings_layer_inp) real_layer_inp;

static ggml_status failing_status = GGML_STATUS_FAILED;

struct fault {
    const char * name;
    void (*install)();
};

#define RETURNS(function, value, ...)                                                                                        \
    [] {                                                                                                               \
        dspark::function = [](auto... arguments) { return strikes() ? value : real_##function(arguments...); };          \
    }

static void restore() {
    dspark::ggml_backend_sched_graph_compute         = real_ggml_backend_sched_graph_compute;
    dspark::ggml_backend_sched_alloc_graph           = real_ggml_backend_sched_alloc_graph;
    dspark::ggml_backend_sched_new                   = real_ggml_backend_sched_new;
    dspark::ggml_backend_alloc_ctx_tensors_from_buft = real_ggml_backend_alloc_ctx_tensors_from_buft;
    dspark::ggml_backend_dev_init                    = real_ggml_backend_dev_init;
    dspark::ggml_init                                = real_ggml_init;
    dspark::gguf_init_from_file                      = real_gguf_init_from_file;
    dspark::llama_decode                             = real_llama_decode;
    dspark::llama_get_logits_ith                     = real_llama_get_logits_ith;
    dspark::llama_get_embeddings_layer_inp           = real_layer_inp;
    n_until_failure = at = -1;
}

static void remember() {
    real_ggml_backend_sched_graph_compute         = dspark::ggml_backend_sched_graph_compute;
    real_ggml_backend_sched_alloc_graph           = dspark::ggml_backend_sched_alloc_graph;
    real_ggml_backend_sched_new                   = dspark::ggml_backend_sched_new;
    real_ggml_backend_alloc_ctx_tensors_from_buft = dspark::ggml_backend_alloc_ctx_tensors_from_buft;
    real_ggml_backend_dev_init                    = dspark::ggml_backend_dev_init;
    real_ggml_init                                = dspark::ggml_init;
    real_gguf_init_from_file                      = dspark::gguf_init_from_file;
    real_llama_decode                             = dspark::llama_decode;
    real_llama_get_logits_ith                     = dspark::llama_get_logits_ith;
    real_layer_inp                                = dspark::llama_get_embeddings_layer_inp;
}

// --- the scenario -----------------------------------------------------------------------------------------------------------

static const std::string path = "test_faults." + std::to_string(getpid()) + ".gguf";

using ids = std::vector<int32_t>;

static const ids prompt = {1, 17, 42, 9, 33, 5, 60};

static llama_context * ctx = nullptr;

// A call that may fail once with one of the statuses that stand for a fault; repeated it succeeds.
template <typename Call> static void once_more(Call && call) {
    is_inside                  = true;
    const dspark_status status = call();
    is_inside                  = false;
    if (status != DSPARK_OK) {
        ASSERT(has_struck);
        ASSERT(status == DSPARK_ERROR_MEMORY || status == DSPARK_ERROR_BACKEND || status == DSPARK_ERROR_CONTEXT_FULL || status == DSPARK_ERROR_FORMAT);
        ASSERT(dspark_last_error()[0] != '\0');
        ASSERT_OK(call());
    }
}

static int n_gave_up = 0; // of all runs, those that ended without their draft

// Loads, generates, saves, goes back, restores: the text, with the fault that is armed.
static ids run() {
    dspark_draft *              draft = nullptr;
    dspark_session *            s     = nullptr;
    dspark_session_params       params;
    ids                         text;
    int32_t                     n = 0;
    dspark_session_params_init(&params);
    params.draft.n_threads = 1;
    once_more([&] { return dspark_draft_load(path.c_str(), nullptr, &draft); });
    once_more([&] { return dspark_session_create(ctx, draft, &params, &s); });
    const auto append = [&](const ids & tokens) {
        once_more([&] { return dspark_session_append(s, tokens.data(), (int32_t) tokens.size(), &n); });
        ASSERT(n == (int32_t) tokens.size());
    };
    const auto generate = [&](int n_tokens) {
        for (int i = 0; i < n_tokens; ++i) {
            int32_t token = -1;
            once_more([&] { return dspark_session_next(s, nullptr, -1, &token); });
            text.push_back(token);
        }
    };
    append(prompt);
    generate(8);
    uint8_t * data = nullptr;
    size_t    size = 0;
    once_more([&] { return dspark_session_save(s, &data, &size); });
    once_more([&] { return dspark_session_load(s, data, size); });
    dspark_saved_free(data);
    append({text.back()});
    generate(4);
    once_more([&] { return dspark_session_rewind(s, (int32_t) prompt.size() - 1); });
    append({prompt.back()});
    generate(6);
    dspark_session_state state;
    dspark_stats         stats;
    state.struct_size = sizeof(state);
    stats.struct_size = sizeof(stats);
    once_more([&] { return dspark_session_get_state(s, &state); });
    once_more([&] { return dspark_session_get_stats(s, &stats); });
    if (state.disabled_reason) {
        ASSERT(has_struck && strstr(state.disabled_reason, "draft"));
        ++n_gave_up;
        // from the beginning it drafts again
        once_more([&] { return dspark_session_rewind(s, 0); });
        once_more([&] { return dspark_session_get_state(s, &state); });
        ASSERT(!state.disabled_reason);
        append(prompt);
    }
    dspark_session_free(s);
    dspark_draft_free(draft);
    return text;
}

// The fault at its occasions, one a run, until there is none left; returns how often it struck.
template <typename Arm> static int sweep(const char * name, const ids & wanted, Arm && arm) {
    int n_struck = 0;
    for (int k = 0;; k += 1 + k / 64) { // each of the first, then some
        has_struck = false;
        arm(k);
        const ids  text   = run();
        const bool struck = has_struck;
        restore();
        if (text != wanted) {
            fprintf(stderr, "%s, occasion %d: the text is another\n", name, k);
            exit(1);
        }
        if (!struck) {
            break;
        }
        ++n_struck;
    }
    printf("%-45s struck %4d times\n", name, n_struck);
    ASSERT(n_struck > 0);
    return n_struck;
}

// --- tests ------------------------------------------------------------------------------------------------------------------

static void test_allocations(const ids & wanted) {
    const int before = n_gave_up;
    sweep("operator new", wanted, [](int k) { n_until_failure = k; });
    ASSERT(n_gave_up > before);
}

static void test_ggml(const ids & wanted) {
    const fault faults[] = {
        {"ggml_backend_sched_graph_compute", RETURNS(ggml_backend_sched_graph_compute, failing_status)},
        {"ggml_backend_sched_alloc_graph", RETURNS(ggml_backend_sched_alloc_graph, false)},
        {"ggml_backend_sched_new", RETURNS(ggml_backend_sched_new, nullptr)},
        {"ggml_backend_alloc_ctx_tensors_from_buft", RETURNS(ggml_backend_alloc_ctx_tensors_from_buft, nullptr)},
        {"ggml_backend_dev_init", RETURNS(ggml_backend_dev_init, nullptr)},
        {"ggml_init", RETURNS(ggml_init, nullptr)},
        {"gguf_init_from_file", RETURNS(gguf_init_from_file, nullptr)},
    };
    for (const fault & f : faults) {
        for (ggml_status status : {GGML_STATUS_FAILED, GGML_STATUS_ALLOC_FAILED, GGML_STATUS_ABORTED}) {
            failing_status = status;
            sweep(f.name, wanted, [&](int k) {
                f.install();
                at = k;
            });
            if (f.name != faults[0].name) {
                break; // only the computation has a status
            }
        }
    }
}

static int32_t failing_decode(llama_context * context, llama_batch batch) {
    if (!strikes()) {
        return real_llama_decode(context, batch);
    }
    if (decode_code == -3 || decode_code == 2) { // failed in the middle: what came before stays in the memory
        real_llama_decode(context, batch);
    }
    return decode_code;
}

static void test_decode_codes(const ids & wanted) {
    for (int32_t code : {1, 2, -1, -2, -3, 77}) {
        decode_code = code;
        sweep(("llama_decode = " + std::to_string(code)).c_str(), wanted, [](int k) {
            dspark::llama_decode = failing_decode;
            at                   = k;
        });
    }
}

static float wild_value = 0;

// A row of NaN or infinity as logits: a token of the vocabulary, and the next row is right again.
static void test_wild_logits() {
    for (float value : {NAN, INFINITY, -INFINITY}) {
        wild_value = value;
        for (int k = 0; k < 20; ++k) {
            dspark::llama_get_logits_ith = [](llama_context * context, int32_t row) {
                static std::vector<float> wild(64);
                std::fill(wild.begin(), wild.end(), wild_value);
                return strikes() ? wild.data() : real_llama_get_logits_ith(context, row);
            };
            at = k;
            for (int32_t token : run()) {
                ASSERT(token >= 0 && token < 64);
            }
            restore();
        }
    }
}

// The draft is given rows that are no numbers: the text stands, and what was given later is drafted from as ever.
static void test_wild_features(const ids & wanted) {
    for (float value : {NAN, INFINITY, -INFINITY, 3e38f}) {
        wild_value = value;
        sweep(("features of " + std::to_string(value)).c_str(), wanted, [](int k) {
            dspark::llama_get_embeddings_layer_inp = [](llama_context * context, uint32_t layer) {
                float * rows = real_layer_inp(context, layer);
                if (strikes()) {
                    std::fill_n(rows, 32, wild_value);
                }
                return rows;
            };
            at = k;
        });
    }
}

// Every byte of a small state changed, every length of it: refused in a sentence, and the session is as before.
static void test_damaged_states() {
    dspark_draft *        draft = nullptr;
    dspark_session *      s     = nullptr;
    dspark_session_params params;
    int32_t               n = 0, wanted = -1, token = -1;
    uint8_t *             data = nullptr;
    size_t                size = 0;
    dspark_session_params_init(&params);
    params.draft.n_threads = 1;
    ASSERT_OK(dspark_draft_load(path.c_str(), nullptr, &draft));
    ASSERT_OK(dspark_session_create(ctx, draft, &params, &s));
    ASSERT_OK(dspark_session_append(s, prompt.data(), (int32_t) prompt.size(), &n));
    ASSERT_OK(dspark_session_save(s, &data, &size));
    ASSERT_OK(dspark_session_next(s, nullptr, 0, &wanted));
    ASSERT_OK(dspark_session_rewind(s, (int32_t) prompt.size() - 1));
    ASSERT_OK(dspark_session_append(s, &prompt.back(), 1, &n));
    const std::vector<uint8_t> good(data, data + size);
    dspark_saved_free(data);
    for (size_t i = 0; i < size; ++i) {
        std::vector<uint8_t> bad = good;
        bad[i]                   = (uint8_t) (bad[i] ^ (1u << i % 8));
        ASSERT_STATUS(DSPARK_ERROR_FORMAT, dspark_session_load(s, bad.data(), size));
        bad.assign(good.begin(), good.begin() + (ptrdiff_t) i);
        bad.reserve(1);
        ASSERT_STATUS(DSPARK_ERROR_FORMAT, dspark_session_load(s, bad.data(), i));
    }
    ASSERT_OK(dspark_session_next(s, nullptr, 0, &token));
    ASSERT(token == wanted);
    printf("%zu bytes of a state changed, %zu lengths of it\n", size, size);
    dspark_session_free(s);
    dspark_draft_free(draft);
}

int main() {
    toy::bind();
    const auto & llama = toy::llama();
    llama.llama_backend_init();
    dl_iterate_phdr(note_library, nullptr);
    ASSERT(foreign.size() >= 2);
    void * frames[2];
    backtrace(frames, 2); // loads libgcc now, not inside of an allocation
    remember();

    toy::make_target(7, true).save(path);
    llama_model_params model_params = llama.llama_model_default_params();
    model_params.n_gpu_layers       = 0;
    model_params.load_mode          = LLAMA_LOAD_MODE_NONE;
    llama_model *        model      = llama.llama_model_load_from_file(path.c_str(), model_params);
    llama_context_params params     = llama.llama_context_default_params();
    params.n_ctx                    = 128;
    params.n_batch                  = 16;
    params.n_ubatch                 = 16;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type        = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    ctx                           = llama.llama_init_from_model(model, params);
    ASSERT(model && ctx);
    toy::make_draft().save(path);

    const ids wanted = run();
    ASSERT(wanted.size() == 18 && n_gave_up == 0);
    test_damaged_states();
    test_ggml(wanted);
    test_decode_codes(wanted);
    test_wild_features(wanted);
    test_wild_logits();
    test_allocations(wanted);
    printf("%d runs went on without their draft\n", n_gave_up);

    llama.llama_free(ctx);
    llama.llama_model_free(model);
    remove(path.c_str());
    return 0;
}
