/* The header as a C99 program sees it.
 *
 * Stands for: a header that only C++ compiles, a NULL that ends the process, a caller built against another version of a
 * struct, out pointers that keep garbage after an error, one thread reading another's error, calls before dspark_bind(), and
 * a bind to something that is not llama.cpp. */
#include "test.h"
#include "toy.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define DRAFT  "test_capi.draft.gguf"
#define POISON ((void *) (size_t) 0x5a5a)

/* Not dereferenced by anything that may be called with it. */
static struct llama_context * const some_context = (struct llama_context *) POISON;

static void test_names(void) {
    int i;
    ASSERT(strcmp(dspark_version(), DSPARK_VERSION) == 0);
    ASSERT(strcmp(dspark_status_name(DSPARK_OK), "DSPARK_OK") == 0);
    ASSERT(strcmp(dspark_status_name(DSPARK_ERROR_INTERNAL), "DSPARK_ERROR_INTERNAL") == 0);
    for (i = 0; i <= (int) DSPARK_ERROR_INTERNAL; ++i) {
        ASSERT(strncmp(dspark_status_name((dspark_status) i), "DSPARK_", 7) == 0);
    }
    for (i = (int) DSPARK_ERROR_INTERNAL + 1; i < 40; ++i) {
        ASSERT(strcmp(dspark_status_name((dspark_status) i), "unknown status") == 0);
    }
    ASSERT(strcmp(dspark_status_name((dspark_status) 1000000), "unknown status") == 0);
    ASSERT(strcmp(dspark_status_name((dspark_status) -1), "unknown status") == 0);
}

/* Every call that needs llama.cpp is refused, and the others work. */
static void test_before_bind(void) {
    dspark_draft *       draft   = POISON;
    dspark_session *     session = POISON;
    dspark_feature_tap * tap     = POISON;
    dspark_drafter       drafter;

    ASSERT(dspark_last_error() != NULL && dspark_last_error()[0] == '\0');
    ASSERT(dspark_build_ggml_version()[0] != '\0');
    ASSERT(dspark_bound_ggml_version()[0] == '\0');
    ASSERT(dspark_bound_ggml_commit()[0] == '\0');
    ASSERT(dspark_bound_llama_version()[0] == '\0');
    ASSERT(!dspark_has_layer_taps());
    ASSERT(dspark_device_count() == 0);
    ASSERT(dspark_device_name(0) == NULL);

    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_load(DRAFT, NULL, &draft));
    ASSERT(draft == NULL);
    draft = POISON;
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_inspect(DRAFT, &draft));
    ASSERT(draft == NULL);
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_kernels_install(DSPARK_KERNELS_AUTO, 0));
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_feature_tap_create(&tap));
    ASSERT(tap == NULL);
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_create(some_context, NULL, NULL, &session));
    ASSERT(session == NULL);
    memset(&drafter, 0, sizeof(drafter));
    drafter.struct_size = sizeof(drafter);
    drafter.n_draft_max = 1;
    drafter.propose     = (int (*)(void *, int32_t, int32_t, int32_t, int32_t *, int32_t *)) (size_t) POISON;
    session             = POISON;
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_session_create_with_drafter(some_context, &drafter, NULL, &session));
    ASSERT(session == NULL);
    ASSERT(strstr(dspark_last_error(), "dspark_bind"));
}

/* None, foreign and partial handles; the message names what is missing, and a later right bind works. */
static void test_bind(void) {
    void * libllama = toy_open_libllama();
    void * libm     = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    void * both[2];
    libm = libm ? libm : dlopen(NULL, RTLD_NOW);

    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_bind(NULL, 0));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_bind(NULL, 1));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_bind(&libllama, 0));
    ASSERT_STATUS(DSPARK_ERROR_BINDING, dspark_bind(&libm, 1));
    ASSERT(strstr(dspark_last_error(), "ggml_mul_mat") && strstr(dspark_last_error(), "llama_decode"));
    ASSERT(dspark_bound_ggml_version()[0] == '\0');
    ASSERT(dspark_device_count() == 0);

    /* ggml without llama: still not bound, and nothing of it is used */
    {
        void *          ggml  = dlopen(TOY_LIBGGML, RTLD_NOW | RTLD_LOCAL);
        dspark_draft *  draft = POISON;
        ASSERT(ggml);
        ASSERT_STATUS(DSPARK_ERROR_BINDING, dspark_bind(&ggml, 1));
        ASSERT(strstr(dspark_last_error(), "llama_decode") && !strstr(dspark_last_error(), "ggml_mul_mat"));
        ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_load(DRAFT, NULL, &draft));
        ASSERT(draft == NULL);
        ASSERT(dspark_bound_ggml_version()[0] == '\0');
        ASSERT(dspark_bound_ggml_commit()[0] == '\0');
        ASSERT(dspark_device_count() == 0);
    }

    both[0] = libm;
    both[1] = libllama;
    ASSERT_OK(dspark_bind(both, 2));
    ASSERT_OK(dspark_bind(&libllama, 1)); /* again: nothing to do */
    ASSERT_STATUS(DSPARK_ERROR_BINDING, dspark_bind(&libm, 1)); /* another one: refused */
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_bind(NULL, 0));

    ASSERT(strcmp(dspark_bound_ggml_version(), dspark_build_ggml_version()) == 0);
    ASSERT(dspark_bound_llama_version()[0] != '\0');
    ASSERT(dspark_bound_ggml_commit() != NULL);
    ASSERT(dspark_has_layer_taps());
    ASSERT(dspark_arch_has_layer_taps("llama") && !dspark_arch_has_layer_taps("gemma3") && !dspark_arch_has_layer_taps(""));
    ASSERT(!dspark_arch_has_layer_taps(NULL));
}

static void test_devices(void) {
    int32_t i, n = dspark_device_count();
    int     n_cpu = 0;
    ASSERT(n >= 1);
    for (i = 0; i < n; ++i) {
        ASSERT(dspark_device_name(i) && dspark_device_description(i) && dspark_device_kind(i));
        n_cpu += strcmp(dspark_device_kind(i), "cpu") == 0;
    }
    ASSERT(n_cpu >= 1);
    {
        const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
        for (i = 0; i < 3; ++i) {
            ASSERT(!dspark_device_name(wrong[i]) && !dspark_device_description(wrong[i]) && !dspark_device_kind(wrong[i]));
        }
        ASSERT(!dspark_device_name(n) && !dspark_device_description(n) && !dspark_device_kind(n));
    }
}

/* NULL in every place of every function. */
/* Before the first draft: its weights lie in the kernels' memory, and outlive the switch. */
static void test_kernels(void) {
    dspark_kernels_state state = {0};
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_kernels_get_state(NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_kernels_get_state(&state));
    state.struct_size = sizeof(state);
    ASSERT_OK(dspark_kernels_get_state(&state));
    ASSERT(!state.active && !state.packs_weights && strcmp(state.reason, "the kernels were not installed") == 0 && state.isa[0] == '\0');
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_kernels_install(3, 0));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_kernels_install(-1, 0));
    ASSERT_OK(dspark_kernels_install(DSPARK_KERNELS_AUTO, 0));
    ASSERT_OK(dspark_kernels_get_state(&state));
    ASSERT(state.active ? state.isa[0] != '\0' : state.reason[0] != '\0');
    ASSERT_OK(dspark_kernels_install(DSPARK_KERNELS_AUTO, UINT64_MAX - 1));
    ASSERT_OK(dspark_kernels_get_state(&state));
    ASSERT_OK(dspark_kernels_install(DSPARK_KERNELS_AUTO, 0));
}

static void test_nulls(dspark_draft * draft) {
    const float           features[64] = {0};
    float                 logits[64];
    int32_t               token = 77, n = 77;
    dspark_draft *        out_draft   = POISON;
    dspark_draft_context *context     = POISON;
    dspark_session *      session     = POISON;
    dspark_feature_reader * reader    = POISON;
    dspark_draft_info     info;
    dspark_stats          stats;
    dspark_round          round;
    dspark_proposal       proposal;
    dspark_draft_context_state context_state;
    dspark_session_state  session_state;

    dspark_draft_params_init(NULL);
    dspark_draft_context_params_init(NULL);
    dspark_session_params_init(NULL);
    dspark_draft_free(NULL);
    dspark_draft_context_free(NULL);
    dspark_feature_tap_free(NULL);
    dspark_session_free(NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_close(NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_close(NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_reset_stats(NULL));

    dspark_feature_reader_free(NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_feature_reader_close(NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_feature_reader_read(NULL, &token, 1, 0, 0, logits, NULL, NULL));
    ASSERT(strcmp(dspark_feature_reader_source(NULL), "") == 0);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_feature_reader_create(NULL, &token, 1, 0, NULL, &reader));
    ASSERT(reader == NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_feature_reader_create((struct llama_context *) POISON, NULL, 1, 0, NULL, &reader));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_feature_reader_create((struct llama_context *) POISON, &token, 1, 0, NULL, NULL));

    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_load(NULL, NULL, &out_draft));
    ASSERT(out_draft == NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_load(DRAFT, NULL, NULL));
    out_draft = POISON;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_inspect(NULL, &out_draft));
    ASSERT(out_draft == NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_inspect(DRAFT, NULL));

    memset(&info, 0, sizeof(info));
    info.struct_size = sizeof(info);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_get_info(NULL, &info));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_get_info(draft, NULL));
    ASSERT(dspark_draft_target_layers(NULL) == NULL);
    ASSERT(dspark_draft_meta(NULL, "general.name") == NULL);
    ASSERT(dspark_draft_meta(draft, NULL) == NULL);
    ASSERT(dspark_draft_meta(draft, "no.such.key") == NULL);
    ASSERT(strcmp(dspark_draft_meta(draft, "general.name"), "toy") == 0);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_check_target(NULL, (struct llama_model *) POISON));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_check_target(draft, NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_check_target_file(NULL, DRAFT));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_check_target_file(draft, NULL));
    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_check_target_file(draft, "no/such/file.gguf"));

    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_create(NULL, NULL, NULL, &context));
    ASSERT(context == NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_create(draft, NULL, NULL, NULL));
    context_state.struct_size = sizeof(context_state);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_get_state(NULL, &context_state));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_append(NULL, features, 1));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_rewind(NULL, 0));
    memset(&proposal, 0x5a, sizeof(proposal));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_propose(NULL, 1, 1, logits, &proposal));
    ASSERT(proposal.n == 0 && !proposal.has_confidence);
    ASSERT_OK(dspark_draft_context_create(draft, NULL, NULL, &context));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_append(context, NULL, 1));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_propose(context, 1, 1, logits, NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_context_get_state(context, NULL));
    dspark_draft_context_free(context);

    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_scatter_logits(NULL, features, logits, 64));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_scatter_logits(draft, NULL, logits, 64));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_scatter_logits(draft, features, NULL, 64));

    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_feature_tap_create(NULL));

    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_create(NULL, draft, NULL, &session));
    ASSERT(session == NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_create(some_context, draft, NULL, NULL));
    session = POISON;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_create_with_drafter(some_context, NULL, NULL, &session));
    ASSERT(session == NULL);
    session = POISON;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_create_with_drafter(NULL, NULL, NULL, &session));
    ASSERT(session == NULL);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_append(NULL, &token, 1, &n));
    ASSERT(n == 0);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_append(NULL, NULL, 1, NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_next(NULL, NULL, -1, &token));
    ASSERT(token == 0);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_next(NULL, NULL, -1, NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_settle(NULL));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_rewind(NULL, 0));
    n = 77;
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_get_tokens(NULL, &token, 1, &n));
    ASSERT(n == 0);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_get_tokens(NULL, NULL, 1, NULL));
    session_state.struct_size = sizeof(session_state);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_get_state(NULL, &session_state));
    stats.struct_size = sizeof(stats);
    round.struct_size = sizeof(round);
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_get_stats(NULL, &stats));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_session_get_round(NULL, &round));
}

/* A struct of every other size is refused.  Only its own bytes exist, so that a sanitizer sees a read behind them. */
#define EACH_WRONG_SIZE(type, pointer, call)                                                                           \
    do {                                                                                                               \
        size_t size_;                                                                                                  \
        for (size_ = 0; size_ <= 2 * sizeof(type); ++size_) {                                                          \
            type * pointer;                                                                                            \
            if (size_ == sizeof(type)) {                                                                               \
                continue;                                                                                              \
            }                                                                                                          \
            pointer = calloc(1, size_ < sizeof(size_t) ? sizeof(size_t) : size_);                                      \
            ASSERT(pointer);                                                                                             \
            memcpy(pointer, &size_, sizeof(size_t));                                                                   \
            ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, call);                                                                \
            ASSERT(strstr(dspark_last_error(), "struct_size"));                                                          \
            free(pointer);                                                                                             \
        }                                                                                                              \
    } while (0)

static void test_struct_sizes(dspark_draft * draft) {
    dspark_draft *         out_draft = POISON;
    dspark_draft_context * context   = POISON;
    dspark_session *       session   = POISON;
    dspark_draft_params    draft_params;
    dspark_draft_context_params context_params;
    dspark_session_params  session_params;

    EACH_WRONG_SIZE(dspark_draft_params, params, dspark_draft_load(DRAFT, params, &out_draft));
    ASSERT(out_draft == NULL);
    EACH_WRONG_SIZE(dspark_draft_info, info, dspark_draft_get_info(draft, info));
    EACH_WRONG_SIZE(dspark_draft_context_params, params, dspark_draft_context_create(draft, NULL, params, &context));
    ASSERT(context == NULL);
    EACH_WRONG_SIZE(dspark_session_params, params, dspark_session_create(some_context, NULL, params, &session));
    ASSERT(session == NULL);
    ASSERT_OK(dspark_draft_context_create(draft, NULL, NULL, &context));
    EACH_WRONG_SIZE(dspark_draft_context_state, state, dspark_draft_context_get_state(context, state));
    dspark_draft_context_free(context);
    EACH_WRONG_SIZE(dspark_drafter, drafter, dspark_session_create_with_drafter(some_context, drafter, NULL, &session));
    ASSERT(session == NULL);

    dspark_draft_params_init(&draft_params);
    ASSERT(draft_params.struct_size == sizeof(draft_params) && draft_params.device == NULL);
    dspark_draft_context_params_init(&context_params);
    ASSERT(context_params.struct_size == sizeof(context_params) && context_params.n_threads >= 1 && context_params.n_ctx == 0);
    dspark_session_params_init(&session_params);
    ASSERT(session_params.struct_size == sizeof(session_params) && session_params.draft.struct_size == sizeof(context_params));
    ASSERT(session_params.n_draft_max == -1 && session_params.n_ctx == 0 && session_params.feature_tap == NULL);
}

static void test_files(void) {
    dspark_draft *      draft = POISON;
    dspark_draft_params params;
    FILE *              file;

    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_load("no/such/file.gguf", NULL, &draft));
    ASSERT(draft == NULL && strstr(dspark_last_error(), "no/such/file.gguf"));
    draft = POISON;
    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_inspect("no/such/file.gguf", &draft));
    ASSERT(draft == NULL);
    ASSERT(dspark_draft_load(".", NULL, &draft) != DSPARK_OK && draft == NULL); /* a folder */
    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_load("", NULL, &draft));

    file = fopen("test_capi.foreign", "wb");
    ASSERT(file && fwrite("PK\003\004 not a model", 1, 16, file) == 16 && fclose(file) == 0);
    ASSERT_STATUS(DSPARK_ERROR_FORMAT, dspark_draft_load("test_capi.foreign", NULL, &draft));
    file = fopen("test_capi.foreign", "wb");
    ASSERT(file && fclose(file) == 0);
    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_load("test_capi.foreign", NULL, &draft));

    dspark_draft_params_init(&params);
    params.device = "NoSuchDevice9";
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_load(DRAFT, &params, &draft));
    ASSERT(draft == NULL && strstr(dspark_last_error(), "NoSuchDevice9") && strstr(dspark_last_error(), "CPU"));
    params.device = "CPU";
    ASSERT_OK(dspark_draft_load(DRAFT, &params, &draft));
    dspark_draft_free(draft);
}

static void test_info_and_scatter(dspark_draft * draft) {
    dspark_draft_info info;
    float             rows[48], spread[64];
    int               i, n_finite = 0;

    memset(&info, 0, sizeof(info));
    info.struct_size = sizeof(info);
    ASSERT_OK(dspark_draft_get_info(draft, &info));
    ASSERT(info.n_layer == 2 && info.n_embd == 32 && info.n_head == 4 && info.n_head_kv == 2 && info.n_embd_head == 8);
    ASSERT(info.n_ff == 64 && info.n_vocab == 64 && info.n_vocab_draft == 48 && info.n_ctx_train == 4096);
    ASSERT(info.block_size == 5 && info.n_draft_max == 5 && info.mask_token_id == 63 && info.n_target_layers == 2);
    ASSERT(info.markov_rank == 8 && info.markov_type == DSPARK_MARKOV_VANILLA && info.n_swa == 0);
    ASSERT(info.sample_from_anchor && info.has_confidence && info.has_token_embd && info.has_output);
    ASSERT(info.n_bytes >= 4 * info.n_params && info.n_params > 0);
    ASSERT(dspark_draft_target_layers(draft)[0] == 0 && dspark_draft_target_layers(draft)[1] == 1);
    ASSERT(!dspark_draft_confidence_temperature(draft) && !dspark_draft_confidence_temperature(NULL));

    for (i = 0; i < 48; ++i) {
        rows[i] = (float) i;
    }
    ASSERT_OK(dspark_draft_scatter_logits(draft, rows, spread, 64));
    for (i = 0; i < 64; ++i) {
        n_finite += spread[i] > -1.0f;
    }
    ASSERT(n_finite == 48);
    for (i = 0; i < 48; ++i) {
        ASSERT(spread[(i * 37 + 5) % 64] == (float) i);
    }
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_scatter_logits(draft, rows, spread, 63));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_scatter_logits(draft, rows, spread, 0));
    ASSERT_STATUS(DSPARK_ERROR_ARGUMENT, dspark_draft_scatter_logits(draft, rows, spread, -64));
}

static void test_inspected(void) {
    dspark_draft *         draft   = NULL;
    dspark_draft_context * context = POISON;
    dspark_draft_info      info;
    ASSERT_OK(dspark_draft_inspect(DRAFT, &draft));
    info.struct_size = sizeof(info);
    ASSERT_OK(dspark_draft_get_info(draft, &info));
    ASSERT(info.n_bytes == 0 && info.n_params > 0 && info.n_embd == 32);
    ASSERT_STATUS(DSPARK_ERROR_STATE, dspark_draft_context_create(draft, NULL, NULL, &context));
    ASSERT(context == NULL);
    dspark_draft_free(draft);
}

/* llama.cpp would pass on whatever the caller gave it. */
static void test_tap(void) {
    dspark_feature_tap * tap = NULL;
    ASSERT_OK(dspark_feature_tap_create(&tap));
    /* no session uses it: it wants no node, and lets every graph go on */
    ASSERT(!dspark_feature_tap_callback(NULL, true, tap));
    ASSERT(dspark_feature_tap_callback(NULL, false, tap));
    ASSERT(!dspark_feature_tap_callback(NULL, true, NULL));
    ASSERT(dspark_feature_tap_callback(NULL, false, NULL));
    dspark_feature_tap_free(tap);
}

static void * fail_elsewhere(void * seen) {
    dspark_draft * draft;
    ASSERT(dspark_last_error() != NULL && dspark_last_error()[0] == '\0'); /* this thread has not failed yet */
    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_load("elsewhere.gguf", NULL, &draft));
    ASSERT(strstr(dspark_last_error(), "elsewhere.gguf"));
    *(const char **) seen = dspark_last_error();
    return NULL;
}

static void test_errors_per_thread(void) {
    dspark_draft * draft;
    const char *   elsewhere = NULL;
    pthread_t      thread;
    ASSERT_STATUS(DSPARK_ERROR_FILE, dspark_draft_load("here.gguf", NULL, &draft));
    ASSERT(pthread_create(&thread, NULL, fail_elsewhere, &elsewhere) == 0);
    ASSERT(pthread_join(thread, NULL) == 0);
    ASSERT(elsewhere != NULL && elsewhere != dspark_last_error());
    ASSERT(strstr(dspark_last_error(), "here.gguf") && !strstr(dspark_last_error(), "elsewhere"));
}

int main(void) {
    dspark_draft * draft = NULL;
    toy_write_draft(DRAFT);

    test_names();
    test_before_bind();
    test_bind();
    test_devices();
    test_kernels();
    ASSERT_OK(dspark_draft_load(DRAFT, NULL, &draft));
    test_nulls(draft);
    test_struct_sizes(draft);
    test_files();
    test_info_and_scatter(draft);
    test_inspected();
    test_errors_per_thread();
    test_tap();
    dspark_draft_free(draft);
    return 0;
}
