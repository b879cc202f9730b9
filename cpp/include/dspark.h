/*
 * dspark.h - DSpark speculative decoding for GGUF models
 *
 * A DSpark draft proposes a block of tokens from the hidden states of a target model; the target verifies the
 * block in one batch.  Typical use, with the handles of a libllama that the host has already loaded:
 *
 *     dspark_bind(&libllama, 1);
 *     dspark_draft_load("draft.gguf", NULL, &draft);
 *     dspark_session_create(ctx, draft, NULL, &session);
 *     dspark_session_append(session, prompt, n_prompt);
 *     while (dspark_session_next(session, sampler, -1, &token) == DSPARK_OK && token != eos) { ... }
 *     dspark_session_free(session);
 *     dspark_draft_free(draft);
 *
 * Conventions.  Every function that returns a dspark_status returns DSPARK_OK or an error; on an error every out_
 * pointer is set to NULL / 0 and dspark_last_error() describes what happened, with the value seen and the value
 * wanted.  No function prints, exits or lets an exception out.  Token ids are those of the target's vocabulary.
 * Positions count from 0.  Parameter structs begin with struct_size, which the matching _init() sets, so that a
 * caller built against another version is noticed.
 */
#ifndef DSPARK_H
#define DSPARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DSPARK_VERSION "0.1.0"

#if defined(_WIN32)
#    if defined(DSPARK_BUILD)
#        define DSPARK_API __declspec(dllexport)
#    else
#        define DSPARK_API __declspec(dllimport)
#    endif
#else
#    define DSPARK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: everything up to the matching mark is also read by the Python binding's generator */

/* of llama.cpp and ggml */
struct llama_context;
struct llama_model;
struct llama_sampler;
struct ggml_tensor;

/* ---------------------------------------------------------------------------------------------------------------
 * Status
 * ------------------------------------------------------------------------------------------------------------- */

typedef enum dspark_status {
    DSPARK_OK                 = 0,
    DSPARK_ERROR_ARGUMENT     = 1, /* an argument is outside its documented range */
    DSPARK_ERROR_FILE         = 2, /* a file is missing, unreadable or truncated */
    DSPARK_ERROR_FORMAT       = 3, /* a readable file that is not a draft this version can run */
    DSPARK_ERROR_MISMATCH     = 4, /* draft and target do not belong together */
    DSPARK_ERROR_MEMORY       = 5, /* an allocation failed; the object is as before the call */
    DSPARK_ERROR_BACKEND      = 6, /* ggml or llama.cpp reported a failure */
    DSPARK_ERROR_CONTEXT_FULL = 7, /* no position is left in the target's context */
    DSPARK_ERROR_STATE        = 8, /* the call is not possible in the object's present state */
    DSPARK_ERROR_BINDING      = 9, /* the loaded llama.cpp cannot be bound */
    DSPARK_ERROR_CALLBACK     = 10, /* a callback given by the caller reported failure */
    DSPARK_ERROR_INTERNAL     = 11 /* a defect of this library */
} dspark_status;

/* "0.1.0" */
DSPARK_API const char * dspark_version(void);

/* "DSPARK_ERROR_FILE" for DSPARK_ERROR_FILE; "unknown status" for a number that is none. */
DSPARK_API const char * dspark_status_name(dspark_status status);

/* One sentence about this thread's last failed call; valid until the thread's next dspark_ call; never NULL. */
DSPARK_API const char * dspark_last_error(void);

/* ---------------------------------------------------------------------------------------------------------------
 * Binding to llama.cpp
 * ------------------------------------------------------------------------------------------------------------- */

/* Binds this library to the llama.cpp and ggml that the process has already loaded.
 *
 * libraries: handles from dlopen / LoadLibrary, searched in order; where symbols of ggml can be found through
 * libllama (Linux, macOS) its handle alone is enough.  The handles must stay open as long as the process lives.
 * Checks that every needed function is there, that ggml's version is the one this library was built against, and
 * that a three-operation graph gives its known result.
 * Must be called, once, before any other function but the three above and dspark_build_ggml_version(); further
 * calls with the same libllama do nothing, with another one they fail.
 * Errors: DSPARK_ERROR_BINDING, the message names the missing function or both versions. */
DSPARK_API dspark_status dspark_bind(void * const * libraries, size_t n_libraries);

/* The ggml version this library was built against, and the one it is bound to ("" before dspark_bind). */
DSPARK_API const char * dspark_build_ggml_version(void);
DSPARK_API const char * dspark_bound_ggml_version(void);

/* The commit that the bound ggml states, and llama.cpp's version; "" before dspark_bind. */
DSPARK_API const char * dspark_bound_ggml_commit(void);
DSPARK_API const char * dspark_bound_llama_version(void);

/* True if the bound libllama offers layer-input taps (llama_set_embeddings_layer_inp). */
DSPARK_API bool dspark_has_layer_taps(void);

/* True if this version has checked the layer-input taps of the architecture ("llama", "qwen3", ...).  For any
 * other one llama.cpp would end the process, so its features come through dspark_feature_tap instead. */
DSPARK_API bool dspark_arch_has_layer_taps(const char * architecture);

/* Number of ggml devices, and the name ("CPU", "CUDA0"), description and kind ("cpu", "gpu", "igpu", "accel") of
 * the i-th; NULL for an index outside [0, n). */
DSPARK_API int32_t      dspark_device_count(void);
DSPARK_API const char * dspark_device_name(int32_t index);
DSPARK_API const char * dspark_device_description(int32_t index);
DSPARK_API const char * dspark_device_kind(int32_t index);

/* ---------------------------------------------------------------------------------------------------------------
 * Kernels: own CPU kernels for matrix products and attention, inside ggml's thread pool.  Every output row comes out
 * bit for bit the same alone or in a batch, and a batch of few rows costs little more than one.
 * ------------------------------------------------------------------------------------------------------------- */

typedef enum dspark_kernels_mode {
    DSPARK_KERNELS_AUTO = 0, /* install them where they can run; the state says why not */
    DSPARK_KERNELS_ON   = 1, /* fail where they cannot */
    DSPARK_KERNELS_OFF  = 2  /* llama.cpp's own */
} dspark_kernels_mode;

/* Installs the kernels in the bound ggml, for every model of the process, or switches them off.  Off unless called.
 * Quantised weights of models that are loaded from then on are stored once, in the kernels' layout, and such weights are
 * computed here whatever the mode is later; weights of models that were loaded before keep llama.cpp's layout and kernels.
 * F32, F16 and BF16 weights and attention are computed in place and follow the mode at any time.
 * A self-test comes first; whatever it finds wrong leaves llama.cpp's kernels in place.  n_bytes: size of the model to be
 * loaded next, 0 if none is; its quantised weights will be copied from the file, so mode AUTO leaves them to llama.cpp, which
 * can map the file, where less memory is available.
 * Must not run beside a computation of ggml's CPU device.
 * Errors: DSPARK_ERROR_ARGUMENT; DSPARK_ERROR_BINDING with mode ON. */
DSPARK_API dspark_status dspark_kernels_install(int32_t mode, uint64_t n_bytes);

typedef struct dspark_kernels_state {
    size_t       struct_size;
    bool         active;
    bool         packs_weights; /* models loaded from now on keep quantised weights in the kernels' layout */
    const char * reason;        /* why not active, or what is missing; "" if nothing is; valid until the thread's next call */
    const char * isa;           /* instruction set: "avx512", "avx512_bf16", "avx2", "neon_i8mm", "neon"; "" before the first install */
    int64_t      n_matmul;      /* operations computed by the kernels so far */
    int64_t      n_attention;
    uint64_t     n_bytes;       /* of weights in the kernels' layout, in all models of the process */
    const char * removed;       /* kernels of llama.cpp that crash on this machine, and that it does without: "AMX"; "" if none do */
} dspark_kernels_state;

DSPARK_API dspark_status dspark_kernels_get_state(dspark_kernels_state * state);

/* ---------------------------------------------------------------------------------------------------------------
 * Draft: the weights.  Immutable after loading; may be used by any number of threads and sessions at once.
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct dspark_draft dspark_draft;

typedef struct dspark_draft_params {
    size_t       struct_size;
    const char * device;      /* name of a ggml device, or NULL: the CPU */
} dspark_draft_params;

DSPARK_API void dspark_draft_params_init(dspark_draft_params * params);

typedef enum dspark_markov_type {
    DSPARK_MARKOV_NONE    = 0,
    DSPARK_MARKOV_VANILLA = 1,
    DSPARK_MARKOV_GATED   = 2,
    DSPARK_MARKOV_RNN     = 3
} dspark_markov_type;

typedef struct dspark_draft_info {
    size_t   struct_size;
    uint64_t n_bytes;            /* of weights on the device */
    uint64_t n_params;
    int32_t  n_layer;
    int32_t  n_embd;
    int32_t  n_head;
    int32_t  n_head_kv;
    int32_t  n_embd_head;
    int32_t  n_ff;
    int32_t  n_vocab;            /* of the target; 0: the file does not say */
    int32_t  n_vocab_draft;      /* rows of the head; 0: the target's head is borrowed */
    int32_t  n_ctx_train;
    int32_t  block_size;         /* slots of one block */
    int32_t  n_draft_max;        /* tokens that one block proposes: block_size, or block_size - 1 in the 1+N layout */
    int32_t  mask_token_id;
    int32_t  n_target_layers;
    int32_t  markov_rank;
    int32_t  markov_type;        /* dspark_markov_type */
    int32_t  n_swa;              /* sliding window, 0: none */
    bool     sample_from_anchor;
    bool     has_confidence;
    bool     has_token_embd;     /* false: borrowed from the target */
    bool     has_output;         /* false: borrowed from the target */
} dspark_draft_info;

/* Reads and validates a GGUF file of architecture "dflash" and puts its weights on the device.  params may be NULL.
 * Errors: DSPARK_ERROR_FILE, _FORMAT, _MEMORY, _ARGUMENT (unknown device, wrong struct_size). */
DSPARK_API dspark_status dspark_draft_load(const char * path, const dspark_draft_params * params, dspark_draft ** out_draft);

/* Like dspark_draft_load, but only reads and validates; no weights are held.  Such a draft can be asked for its
 * properties and is refused by sessions. */
DSPARK_API dspark_status dspark_draft_inspect(const char * path, dspark_draft ** out_draft);

/* Drops the caller's reference; sessions and contexts keep theirs.  NULL is allowed. */
DSPARK_API void dspark_draft_free(dspark_draft * draft);

/* Fills *info, of which struct_size must be set. */
DSPARK_API dspark_status dspark_draft_get_info(const dspark_draft * draft, dspark_draft_info * info);

/* The tapped target layers as inputs of layer i, in the order of the fuse; n_target_layers values. */
DSPARK_API const int32_t * dspark_draft_target_layers(const dspark_draft * draft);

/* What the logits of the confidence head are divided by, for each drafted token; n_draft_max values.  NULL: the file has
 * none, and the logits are the head's own. */
DSPARK_API const float * dspark_draft_confidence_temperature(const dspark_draft * draft);

/* A metadata string of the file ("general.name"), NULL if it has none of that name and type. */
DSPARK_API const char * dspark_draft_meta(const dspark_draft * draft, const char * key);

/* Checks that the draft belongs to the target: width, layers, vocabulary, token table, and that what the draft
 * borrows is there.  Errors: DSPARK_ERROR_MISMATCH. */
DSPARK_API dspark_status dspark_draft_check_target(const dspark_draft * draft, const struct llama_model * target);

/* The same from the target's GGUF file, of which only the header is read. */
DSPARK_API dspark_status dspark_draft_check_target_file(const dspark_draft * draft, const char * target_path);

/* Most slots of a block, and most tokens of a proposal. */
#define DSPARK_BLOCK_MAX 128

/* ---------------------------------------------------------------------------------------------------------------
 * Draft context: one sequence of a draft (its K/V cache).  One call at a time: another one that
 * arrives meanwhile, from a second thread, is refused with DSPARK_ERROR_STATE.
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct dspark_draft_context dspark_draft_context;

typedef struct dspark_draft_context_params {
    size_t  struct_size;
    int32_t n_threads;  /* > 0; default 4, or fewer cores */
    int32_t type_k;     /* ggml_type of the draft's K cache; default F16 */
    int32_t type_v;     /* and of its V cache */
    int32_t n_ctx;      /* longest sequence that may be drafted for; 0: no limit but memory, which grows with use */
} dspark_draft_context_params;

DSPARK_API void dspark_draft_context_params_init(dspark_draft_context_params * params);

/* One proposed block. */
typedef struct dspark_proposal {
    int32_t n;              /* number of proposed tokens */
    bool    has_confidence; /* else confidence_logits is unused */
    int32_t ids[DSPARK_BLOCK_MAX];
    float   confidence_logits[DSPARK_BLOCK_MAX]; /* the sigmoid is P(accepted | earlier accepted); divided by the file's temperatures */
} dspark_proposal;

/* target lends its embedding and head where the draft has none, and must outlive the context; it may be NULL for a
 * draft that has both.  params may be NULL.
 * Errors: DSPARK_ERROR_MISMATCH, _MEMORY, _ARGUMENT, _STATE (draft was only inspected). */
DSPARK_API dspark_status dspark_draft_context_create(const dspark_draft * draft, const struct llama_model * target,
        const dspark_draft_context_params * params, dspark_draft_context ** out_context);

/* Must not run beside another call on the same context.  NULL is allowed. */
DSPARK_API void dspark_draft_context_free(dspark_draft_context * context);

/* Frees what the context holds; every later call but _free() is refused.  Waits for a call of another thread to end.
 * For hosts that cannot rule out such calls; the others only _free(). */
DSPARK_API dspark_status dspark_draft_context_close(dspark_draft_context * context);

/* Number of positions whose features the context holds, bytes of its K/V cache as it is now, and the number of logits of
 * one slot: rows of the draft's own or borrowed head. */
typedef struct dspark_draft_context_state {
    size_t  struct_size;
    size_t  kv_size;
    int32_t n_past;
    int32_t n_logits;
} dspark_draft_context_state;

DSPARK_API dspark_status dspark_draft_context_get_state(dspark_draft_context * context, dspark_draft_context_state * state);

/* Appends the features of the next n_rows positions: features is [n_rows][n_target_layers * n_embd] f32, a row
 * being the concatenated inputs of the tapped layers.  Any split of the rows over calls gives the same cache, bit
 * for bit.  On failure the context is as before. */
DSPARK_API dspark_status dspark_draft_context_append(dspark_draft_context * context, const float * features, int32_t n_rows);

/* Drops the positions from n_past on; n_past may not exceed the present number. */
DSPARK_API dspark_status dspark_draft_context_rewind(dspark_draft_context * context, int32_t n_past);

/* Proposes up to n_max tokens to follow anchor, the token at position n_past.  The block is always run at its full
 * trained size, so that a smaller n_max gives a prefix.  n is 0 when the block does not fit below n_ctx.
 * out_logits is NULL, or takes the logits in draft rows: [n_max][n_logits], of which the first n rows are written.
 * Does not change the context.
 * Errors: DSPARK_ERROR_ARGUMENT (anchor outside the vocabulary, n_max < 1), _STATE (n_past is 0), _BACKEND. */
DSPARK_API dspark_status dspark_draft_context_propose(dspark_draft_context * context, int32_t anchor, int32_t n_max,
        float * out_logits, dspark_proposal * out_proposal);

/* Spreads logits of draft rows over the target's vocabulary: out_logits is [n_vocab], -inf outside the draft's. */
DSPARK_API dspark_status dspark_draft_scatter_logits(const dspark_draft * draft, const float * draft_logits,
        float * out_logits, int32_t n_vocab);

/* ---------------------------------------------------------------------------------------------------------------
 * Feature tap: the second source of target features, for architectures without layer-input taps.
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct dspark_feature_tap dspark_feature_tap;

/* To be given to llama_init_from_model as cb_eval and cb_eval_user_data; the tap must outlive the context. */
DSPARK_API dspark_status dspark_feature_tap_create(dspark_feature_tap ** out_tap);
DSPARK_API void          dspark_feature_tap_free(dspark_feature_tap * tap);
DSPARK_API bool          dspark_feature_tap_callback(struct ggml_tensor * tensor, bool ask, void * tap);

typedef enum dspark_feature_source {
    DSPARK_FEATURES_AUTO = 0,
    DSPARK_FEATURES_TAPS = 1, /* llama.cpp's layer-input taps */
    DSPARK_FEATURES_EVAL = 2  /* the evaluation callback of a dspark_feature_tap */
} dspark_feature_source;

/* ---------------------------------------------------------------------------------------------------------------
 * Interrupts: SIGINT and SIGTERM need not wait for the end of a batch.  Between begin and end of one thread, which must be
 * the only one to call these, such a signal is handed on to the host's handler and makes a context with this callback give
 * up the batch that the thread decodes: the call returns DSPARK_ERROR_BACKEND, with the session as that leaves it, and may
 * be repeated.  A signal that the host ignores or leaves to the system is left alone.  Devices that llama.cpp
 * asks for no abort callback (most GPUs) finish the batch; so does everything on Windows.
 * ------------------------------------------------------------------------------------------------------------- */

/* To be given to llama_set_abort_callback or llama_context_params; its data is not used. */
DSPARK_API bool dspark_interrupt_callback(void * unused);

DSPARK_API void dspark_interrupts_begin(void);
/* True if a batch was given up since begin.  Without a begin it does nothing. */
DSPARK_API bool dspark_interrupts_end(void);

/* ---------------------------------------------------------------------------------------------------------------
 * Feature reader: the features and likely next tokens of whole sequences, of which a draft is trained.  One call at a
 * time: another one that arrives meanwhile, from a second thread, is refused with DSPARK_ERROR_STATE.
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct dspark_feature_reader dspark_feature_reader;

/* Takes over sequence 0 of the target's context, which must outlive the reader and must not have a session or another reader.
 * layers: whose inputs are read, as in a draft's file.  source is a dspark_feature_source, tap the context's or NULL.
 * The context must allow as many outputs as a batch has tokens (n_outputs_max 0): llama.cpp ends the process otherwise.
 * Errors: DSPARK_ERROR_MISMATCH (the target hands out no features, or has no such layer), _ARGUMENT, _STATE. */
DSPARK_API dspark_status dspark_feature_reader_create(struct llama_context * target, const int32_t * layers, int32_t n_layers,
        int32_t source, dspark_feature_tap * tap, dspark_feature_reader ** out_reader);

/* Must not run beside another call on the same reader.  NULL is allowed. */
DSPARK_API void dspark_feature_reader_free(dspark_feature_reader * reader);

/* As dspark_session_close(). */
DSPARK_API dspark_status dspark_feature_reader_close(dspark_feature_reader * reader);

/* Decodes a sequence from position 0 on; what was there before is forgotten.  out_features is [n_tokens][n_layers * n_embd] f32,
 * a row being the concatenated inputs of the layers, as a drafter's append() gets them.  out_ids and out_probs are
 * [n_tokens - first_row][top_k]: of each row from first_row on the top_k likeliest tokens to come next, likeliest first, and
 * their probabilities at temperature 1 over the whole vocabulary; with top_k 0 both may be NULL.
 * Errors: DSPARK_ERROR_ARGUMENT, _CONTEXT_FULL, _BACKEND. */
DSPARK_API dspark_status dspark_feature_reader_read(dspark_feature_reader * reader, const int32_t * tokens, int32_t n_tokens,
        int32_t first_row, int32_t top_k, float * out_features, int32_t * out_ids, float * out_probs);

/* "layer taps" or "evaluation callback"; "" for NULL or a closed one. */
DSPARK_API const char * dspark_feature_reader_source(dspark_feature_reader * reader);

/* ---------------------------------------------------------------------------------------------------------------
 * Session: a target's context driven with a draft.  Different sessions run side by side; on one session there is one
 * call at a time: another one that arrives meanwhile, from a second thread or from a drafter's callback, is refused
 * with DSPARK_ERROR_STATE.
 * ------------------------------------------------------------------------------------------------------------- */

typedef struct dspark_session dspark_session;

/* Any drafter can drive a session through this table; a draft context is one.  A callback returns 0, or anything else
 * to make the session's call fail with DSPARK_ERROR_CALLBACK.  Unused callbacks may be NULL but propose. */
typedef struct dspark_drafter {
    size_t          struct_size;
    void *          user_data;
    int32_t         n_draft_max;     /* longest proposal it ever makes; >= 1 */
    int32_t         n_target_layers; /* features wanted: 0 for none */
    const int32_t * target_layers;
    int (*append )(void * user_data, const float * features, int32_t pos, int32_t n_rows);
    int (*rewind )(void * user_data, int32_t n_past);
    int (*propose)(void * user_data, int32_t anchor, int32_t pos, int32_t n_max, int32_t * out_ids, int32_t * out_n);
} dspark_drafter;

/* How a round's drafts are verified.  Both leave the sampler's distribution as it is. */
typedef enum dspark_verify {
    /* A token is sampled from the target's logits as if there were no draft; the draft stands if it is that token.  Any sampler, any
     * drafter; a seed gives the tokens of plain decoding.  A draft x stands with probability p(x). */
    DSPARK_VERIFY_MATCH     = 0,
    /* The draft draws its tokens too, shaped by the sampler's temperature, top-k, top-p, min-p and typical steps; with q its
     * distribution and p what all steps of the sampler leave of the target's, x stands with probability min(1, p(x) / q(x)), and is
     * else replaced by a draw from max(p - q, 0), normalised.  Drafts stand with probability sum min(p, q): more often.  A seed gives the
     * same tokens again (where the lengths of proposals are the same: not with auto_depth), but not those of plain decoding.
     * Needs a sampler that is a chain with llama.cpp's "dist" as its last step, from which all random numbers come, and a draft
     * context as the drafter; otherwise tokens are verified by match, and match_reason of the session's state says why. */
    DSPARK_VERIFY_REJECTION = 1
} dspark_verify;

typedef struct dspark_session_params {
    size_t                struct_size;
    int32_t               n_ctx;          /* longest sequence; 0: the target's context size */
    int32_t               n_draft_max;    /* most tokens verified in a round; -1: what the draft proposes; 0: plain */
    float                 confidence_min; /* a proposal ends before the first token of lower confidence; 0: off */
    bool                  auto_depth;     /* see dspark_session_set_auto_depth(); default false */
    int32_t               verify;         /* dspark_verify; default DSPARK_VERIFY_MATCH */
    int32_t               feature_source; /* dspark_feature_source */
    dspark_feature_tap *  feature_tap;    /* the tap of the target's context, or NULL */
    const int32_t *       tokens;         /* that the target's memory holds already, at positions 0, 1, ...: see _adopt() */
    int32_t               n_tokens;       /* 0: the target's memory is emptied */
    bool                  logits_all;     /* append computes the logits of every token, not of the last alone */
    dspark_draft_context_params draft;    /* of the draft's context */
} dspark_session_params;

DSPARK_API void dspark_session_params_init(dspark_session_params * params);

/* Takes over sequence 0 of the target's context, which is emptied unless params name its tokens; the context must outlive the session and must not
 * be used by another session.  draft NULL: plain decoding.  A target that cannot forget single positions
 * (recurrent memory without snapshots, n_rs_seq 0) is decoded plainly, and disabled_reason of its state says so.  With
 * snapshots a round has at most n_rs_seq drafts, and n_ubatch must be n_rs_seq + 2 or more: llama.cpp ends the process otherwise.
 * The context must allow as many outputs as a round has rows (n_outputs_max 0, or at least 1 + the draft's n_draft_max):
 * llama.cpp ends the process otherwise, and cannot be asked.
 * Errors: DSPARK_ERROR_MISMATCH, _ARGUMENT, _STATE (context has a session), _MEMORY. */
DSPARK_API dspark_status dspark_session_create(struct llama_context * target, const dspark_draft * draft,
        const dspark_session_params * params, dspark_session ** out_session);

/* Like dspark_session_create, with a drafter of the caller's, copied; user_data must outlive the session. */
DSPARK_API dspark_status dspark_session_create_with_drafter(struct llama_context * target, const dspark_drafter * drafter,
        const dspark_session_params * params, dspark_session ** out_session);

/* Leaves the tokens that the session has kept in the target's memory.  Must not run beside another call on the same
 * session.  NULL is allowed. */
DSPARK_API void dspark_session_free(dspark_session * session);

/* Frees what the session holds; every later call but _free() is refused.  Waits for a call of another thread to end;
 * refused from inside one of the session's own calls.  For hosts that cannot rule out such calls. */
DSPARK_API dspark_status dspark_session_close(dspark_session * session);

/* Decodes at most one target batch (n_batch tokens) of the given tokens, appended to the sequence; *out_n tells how
 * many it took, so that a caller can react to signals between batches.  An open round is settled first, and a token
 * that dspark_session_next() returned last but has not decoded is dropped: pass it here to keep it.
 * Logits are computed for the last token of the call alone, unless logits_all was asked for.
 * On an error the sequence is as before the call; rows that a drafter's append() refused leave the target's memory with the
 * session's next call. */
DSPARK_API dspark_status dspark_session_append(dspark_session * session, const int32_t * tokens, int32_t n_tokens, int32_t * out_n);

/* Returns the next token, chosen by sampler from the target's logits (llama_sampler_sample, which also accepts it), or
 * by argmax, lowest id first, if sampler is NULL.  Every token is the target's own choice given the tokens before it;
 * a draft decides only how many rows one target batch computes.  Under DSPARK_VERIFY_REJECTION the choice is made with the draft's
 * help, with the same distribution; the steps of the sampler are applied once and accept the token, as in llama_sampler_sample.
 * Rows of a verified block are sampled one by one as they are asked for; a new round (propose, decode) is run when none
 * is left.  n_draft_max limits this round's proposal: -1 for the session's limit, 0 for none.
 * The returned token is not yet in the target's memory: n_tokens() does not count it.
 * Errors: DSPARK_ERROR_CONTEXT_FULL, _STATE (nothing appended, or the target's memory was moved by somebody else, which
 * shows in its last position alone: other tokens put in place of the session's are not noticed),
 * _BACKEND and _CALLBACK (the sequence is as before the call; the call may be repeated).
 * A draft that fails by itself (its graph cannot be computed, no memory) fails no call: the session decodes without it, disabled_reason of its
 * state says so, until it is rewound to what the draft holds, or begins anew. */
DSPARK_API dspark_status dspark_session_next(dspark_session * session, struct llama_sampler * sampler, int32_t n_draft_max,
        int32_t * out_token);

/* The token that sampler chooses from a row of the target's last batch (-1: the last one), for plain decoding without a session: what
 * llama_sampler_sample() does, with an error where that ends the process.
 * Errors: DSPARK_ERROR_ARGUMENT (a step of the chain is NULL, as of a malformed grammar), _STATE (the row has no logits; the steps leave
 * no token, or only what a grammar among them forbids: nothing was accepted).  Those of the sampler are dspark_session_next()'s too. */
DSPARK_API dspark_status dspark_sample(struct llama_context * target, struct llama_sampler * sampler, int32_t row, int32_t * out_token);

/* Ends an open round: what was verified but not returned is dropped from both caches.  The last returned token
 * stays pending. */
DSPARK_API dspark_status dspark_session_settle(dspark_session * session);

/* Keeps the first n_tokens of the sequence in both caches and forgets the pending token.  Where the target's memory
 * cannot drop a tail, it is cleared and the kept tokens are decoded again.  0 <= n_tokens <= n_tokens().
 * No logits are left: append at least one token before the next dspark_session_next(). */
DSPARK_API dspark_status dspark_session_rewind(dspark_session * session, int32_t n_tokens);

/* Tells the session that the host has changed the target's memory, which now holds these tokens at positions 0, 1, ...:
 * after a llama_decode or llama_state_set_data of the host's own.  What the memory holds behind them is removed.  Where the tokens
 * are no prefix of the session's own, the draft forgets the sequence and goes on from here; it proposes worse until it
 * has seen some of it again.  No logits are left: append before the next dspark_session_next().
 * Errors: DSPARK_ERROR_STATE (the memory holds fewer positions), _ARGUMENT; the session is as before. */
DSPARK_API dspark_status dspark_session_adopt(dspark_session * session, const int32_t * tokens, int32_t n_tokens);

/* Saves the session's own side, to go with the target's (llama_state_get_data): tokens and the draft's cache.  An open round is
 * settled first; the pending token is not saved.  *out_data is to be given to dspark_saved_free(). */
DSPARK_API dspark_status dspark_session_save(dspark_session * session, uint8_t ** out_data, size_t * out_size);
DSPARK_API void          dspark_saved_free(uint8_t * data);

/* Takes back what dspark_session_save() wrote, in this process or another, after the host has restored the target's memory.
 * Goes on as the saved session would have, with the same proposals.  No logits are left.  A state saved without a
 * draft makes the draft begin anew, as dspark_session_adopt() does.
 * Errors: DSPARK_ERROR_FORMAT (damaged, or of another version), _MISMATCH (another target, draft or cache type),
 * _CONTEXT_FULL (longer than this session's n_ctx), _STATE (the target's memory is not the saved one); the session is
 * as before. */
DSPARK_API dspark_status dspark_session_load(dspark_session * session, const uint8_t * data, size_t size);

/* Whether the session chooses how many drafted tokens a round verifies, from the next round on: the number, 0 included, that gives
 * most tokens a second by the confidence head (corrected by what was accepted) or else by what was accepted, and by the times
 * that batches and proposals have taken in this session.  Where drafting does not pay it pauses and tries again now and
 * then; it is never slower than plain decoding by more than about one token in a hundred.  false: as many as are proposed.
 * How many are drafted depends on the machine's clock.  Which tokens come out does not but for rounding; under DSPARK_VERIFY_REJECTION
 * random numbers are used otherwise, and only the distribution of the tokens is the same. */
DSPARK_API dspark_status dspark_session_set_auto_depth(dspark_session * session, bool on);

/* What the automatic depth is chosen from, as estimated for the present length of the sequence. */
typedef struct dspark_depth_state {
    size_t  struct_size;
    bool    automatic;  /* auto_depth is on */
    bool    paused;     /* drafting does not pay now: the next rounds are plain */
    int32_t n_max;      /* longest proposal; 0: no draft, nothing else is set */
    double  t_draft;    /* seconds of a proposal */
    double  t_rows  [DSPARK_BLOCK_MAX + 1]; /* seconds of a target batch of 1 + k rows, k = 0 .. n_max */
    float   survival[DSPARK_BLOCK_MAX];     /* P(draft k stands, if all before it do) where the confidence head is sure; k = 0 .. n_max - 1 */
} dspark_depth_state;

DSPARK_API dspark_status dspark_session_get_depth(dspark_session * session, dspark_depth_state * state);

typedef struct dspark_session_state {
    size_t       struct_size;
    const char * disabled_reason; /* why the session does not draft now (static text), NULL if it does */
    const char * match_reason;    /* why the last token was verified by match although verify is DSPARK_VERIFY_REJECTION (static text), else NULL */
    const char * feature_source;  /* "layer taps", "evaluation callback" or "none" */
    int32_t      n_tokens;        /* in the target's memory; the pending one is not counted */
    int32_t      n_ctx;           /* longest sequence */
    int32_t      n_draft_past;    /* positions whose features the drafter holds or will be given before its next proposal */
    int32_t      pending;         /* the token returned last and not decoded yet, -1 if there is none */
    int32_t      logits_row;      /* of the target's last batch (llama_get_logits_ith): the logits that follow the n_tokens, from which the
                                   * pending token was sampled or the next one will be; -1: none are there */
    bool         has_round;       /* a round was run since the last append or rewind */
    bool         exact;           /* every batch of the sequence was computed by the kernels alone, in this session or the one it was loaded from, so that no row's logits depended on the other
                                   * rows: the tokens are, bit for bit, those of plain decoding with the same kernels */
} dspark_session_state;

DSPARK_API dspark_status dspark_session_get_state(dspark_session * session, dspark_session_state * state);

/* Copies the tokens in the target's memory: at most n_max to out_tokens, *out_n tells how many. */
DSPARK_API dspark_status dspark_session_get_tokens(dspark_session * session, int32_t * out_tokens, int32_t n_max, int32_t * out_n);

/* Counters since creation or the last reset. */
typedef struct dspark_stats {
    size_t  struct_size;
    int64_t n_prompt;          /* tokens decoded by append */
    int64_t n_emitted;         /* tokens returned by next */
    int64_t n_rounds;          /* target batches run by next */
    int64_t n_proposals;       /* of these, for which the drafter was asked */
    int64_t n_rounds_drafted;  /* of these, with at least one drafted token */
    int64_t draft_n;           /* drafted tokens that were put before the target */
    int64_t draft_n_accepted;
    int64_t n_by_rejection;    /* drafted tokens decided by rejection sampling; the others by match */
    int64_t t_prompt_us;       /* target: append */
    int64_t t_inject_us;       /* draft: features of the prompt into its cache */
    int64_t t_draft_us;        /* draft: proposing, with the injection of the last round's rows */
    int64_t t_draft_compute_us;/* of this, inside ggml's graph compute */
    int64_t t_verify_us;       /* target: batches of next */
    int64_t t_sample_us;       /* sampler chain or argmax */
    int64_t n_drafted_at [32]; /* rounds whose proposal reached slot k */
    int64_t n_accepted_at[32]; /* of these, with slot k accepted */
} dspark_stats;

DSPARK_API dspark_status dspark_session_get_stats(dspark_session * session, dspark_stats * stats);
DSPARK_API dspark_status dspark_session_reset_stats(dspark_session * session);

/* The round that the last dspark_session_next() sampled from. */
typedef struct dspark_round {
    size_t  struct_size;
    int32_t position;       /* of the anchor */
    int32_t anchor;
    int32_t n_drafted;
    int32_t n_accepted;     /* so far, as tokens are taken lazily */
    int32_t n_sampled;      /* rows of this round that were sampled so far */
    bool    has_confidence; /* else confidence_logits is unused */
    int32_t drafted[DSPARK_BLOCK_MAX];
    float   confidence_logits[DSPARK_BLOCK_MAX];
} dspark_round;

/* DSPARK_ERROR_STATE before the first round since the last append or rewind. */
DSPARK_API dspark_status dspark_session_get_round(dspark_session * session, dspark_round * round);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif /* DSPARK_H */
