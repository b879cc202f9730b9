// The C boundary: every extern "C" function.  Arguments are checked and copied here, exceptions end here; no logic.
#include "draft_context.h"
#include "draft_model.h"
#include "feature_reader.h"
#include "interrupts.h"
#include "kernels/hook.h"
#include "session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <thread>

#ifndef _WIN32
#include <unistd.h>
#endif

// Which process this is: a fork keeps the memory of calls whose threads it leaves behind.
static long process_id() {
#ifdef _WIN32
    return 0;
#else
    return (long) getpid();
#endif
}

struct dspark_draft {
    std::shared_ptr<const dspark::draft_model> model;
};

// An object that admits one call at a time.  The flag is C++'s, not the host's: a host's lock can be lost to a signal that
// arrives just after it was taken.
template <typename T> class exclusive {
  public:
    explicit exclusive(std::unique_ptr<T> impl) : impl_(std::move(impl)) {}

    // Runs body with the object; refuses to wait for another call.
    template <typename F> void use(const char * what, F && body) {
        if (busy_.exchange(true)) {
            dspark::fail(DSPARK_ERROR_STATE, dspark::format("the %s is in use by another call; give each thread one of its own", what));
        }
        holder in(*this);
        if (!impl_) {
            dspark::fail(DSPARK_ERROR_STATE, dspark::format("the %s is closed", what));
        }
        body(*impl_);
    }

    // Waits for another thread's call to end; one that a fork has left behind never does, and what it worked on is not freed.
    void close(const char * what) {
        while (busy_.exchange(true)) {
            if (process_ != process_id()) {
                (void) impl_.release();
                break;
            }
            if (owner_ == std::this_thread::get_id()) {
                dspark::fail(DSPARK_ERROR_STATE, dspark::format("the %s cannot be closed from inside one of its own calls", what));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        holder in(*this);
        impl_.reset();
    }

  private:
    struct holder {
        explicit holder(exclusive & e) : e_(e) {
            e_.owner_   = std::this_thread::get_id();
            e_.process_ = process_id();
        }
        ~holder() {
            e_.owner_ = std::thread::id();
            e_.busy_  = false;
        }
        exclusive & e_;
    };

    std::unique_ptr<T>           impl_;
    std::atomic<bool>            busy_{false};
    std::atomic<std::thread::id> owner_{};
    std::atomic<long>            process_{0}; // of the call that was last
};

struct dspark_draft_context : exclusive<dspark::draft_context> {
    using exclusive::exclusive;
};

struct dspark_feature_reader : exclusive<dspark::feature_reader> {
    using exclusive::exclusive;
};

struct dspark_session : exclusive<dspark::session> {
    using exclusive::exclusive;
};

// ggml's and llama.cpp's functions are called with dspark:: in this file: at global scope their names are also those of the headers.
using namespace dspark;

namespace {

thread_local std::string last_error;

template <typename F> dspark_status guard(F && body) {
    try {
        body();
        return DSPARK_OK;
    } catch (const error & e) {
        last_error = e.what();
        return e.status;
    } catch (const std::bad_alloc &) {
        last_error = "out of memory";
        return DSPARK_ERROR_MEMORY;
    } catch (const std::exception & e) {
        last_error = format("internal error: %s", e.what());
        return DSPARK_ERROR_INTERNAL;
    } catch (...) {
        last_error = "internal error of unknown kind";
        return DSPARK_ERROR_INTERNAL;
    }
}

void need(const void * pointer, const char * what) {
    if (!pointer) {
        fail(DSPARK_ERROR_ARGUMENT, format("%s is NULL", what));
    }
}

// Structs of other sizes come from callers built against another version.
template <typename T> void need_struct(const T * value, const char * what) {
    need(value, what);
    if (value->struct_size != sizeof(T)) {
        fail(DSPARK_ERROR_ARGUMENT, format("%s.struct_size is %zu, expected %zu; set it with the matching _init() or to sizeof", what,
                                           value->struct_size, sizeof(T)));
    }
}

draft_context::params context_params(const dspark_draft_context_params & from) {
    need_struct(&from, "dspark_draft_context_params");
    if (from.n_ctx < 0) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_ctx of the draft is %d, expected 0 (no limit) or more", from.n_ctx));
    }
    for (int32_t type : {from.type_k, from.type_v}) {
        if (type < 0 || type >= GGML_TYPE_COUNT) {
            fail(DSPARK_ERROR_ARGUMENT, format("type %d of the draft's cache is not a ggml type", type));
        }
    }
    draft_context::params to;
    to.n_threads = from.n_threads;
    to.type_k    = (ggml_type) from.type_k;
    to.type_v    = (ggml_type) from.type_v;
    to.n_ctx     = from.n_ctx;
    return to;
}

dspark_session_params session_params_or_default(const dspark_session_params * params) {
    dspark_session_params defaults;
    dspark_session_params_init(&defaults);
    if (params) {
        need_struct(params, "dspark_session_params");
    }
    return params ? *params : defaults;
}

session::params session_params(const dspark_session_params & from) {
    if (from.feature_source < DSPARK_FEATURES_AUTO || from.feature_source > DSPARK_FEATURES_EVAL) {
        fail(DSPARK_ERROR_ARGUMENT, format("feature_source is %d, expected 0 to 2", from.feature_source));
    }
    if (from.verify != DSPARK_VERIFY_MATCH && from.verify != DSPARK_VERIFY_REJECTION) {
        fail(DSPARK_ERROR_ARGUMENT, format("verify is %d, expected 0 (match) or 1 (rejection)", from.verify));
    }
    session::params to;
    to.n_ctx          = from.n_ctx;
    if (from.n_tokens < 0 || (from.n_tokens > 0 && !from.tokens)) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_tokens is %d with %s tokens", from.n_tokens, from.tokens ? "its" : "no"));
    }
    if (from.n_tokens > 0) {
        to.tokens.assign(from.tokens, from.tokens + from.n_tokens);
    }
    to.logits_all     = from.logits_all;
    to.n_draft_max    = from.n_draft_max;
    to.confidence_min = from.confidence_min;
    to.auto_depth     = from.auto_depth;
    to.verify         = from.verify;
    to.feature_source = from.feature_source;
    to.feature_tap    = from.feature_tap;
    return to;
}

// A drafter made of the caller's functions.
class callback_drafter : public drafter {
  public:
    explicit callback_drafter(const dspark_drafter & from) : calls_(from) {
        if (from.n_draft_max < 1 || from.n_draft_max > DSPARK_BLOCK_MAX) {
            fail(DSPARK_ERROR_ARGUMENT, format("drafter.n_draft_max is %d, expected 1 to %d", from.n_draft_max, DSPARK_BLOCK_MAX));
        }
        if (from.n_target_layers < 0 || (from.n_target_layers > 0 && !from.target_layers)) {
            fail(DSPARK_ERROR_ARGUMENT, format("drafter.n_target_layers is %d with %s target_layers", from.n_target_layers, from.target_layers ? "its" : "no"));
        }
        layers_.assign(from.target_layers, from.target_layers + from.n_target_layers);
    }

    int32_t                      n_draft_max() const override { return calls_.n_draft_max; }
    const std::vector<int32_t> & target_layers() const override { return layers_; }
    int32_t                      n_past() const override { return n_past_; }

    void append(const float * features, int32_t n_rows) override {
        check(calls_.append ? calls_.append(calls_.user_data, features, n_past_, n_rows) : 0, "append");
        n_past_ += n_rows;
    }

    void rewind(int32_t n_past) override {
        check(calls_.rewind ? calls_.rewind(calls_.user_data, n_past) : 0, "rewind");
        n_past_ = n_past;
    }

    void restart(int32_t pos) override {
        rewind(0);
        n_past_ = pos;
    }

    void propose(int32_t anchor, int32_t n_max, const drawing *, proposal & out) override {
        std::vector<int32_t> ids((size_t) n_max);
        int32_t              n = 0;
        check(calls_.propose(calls_.user_data, anchor, n_past_, n_max, ids.data(), &n), "propose");
        if (n < 0 || n > n_max) {
            fail(DSPARK_ERROR_CALLBACK, format("the drafter proposed %d tokens, expected 0 to %d", n, n_max));
        }
        out.ids.assign(ids.begin(), ids.begin() + n);
    }

  private:
    static void check(int status, const char * name) {
        if (status != 0) {
            fail(DSPARK_ERROR_CALLBACK, format("the drafter's %s() failed with %d", name, status));
        }
    }

    dspark_drafter       calls_;
    std::vector<int32_t> layers_;
    int32_t              n_past_ = 0;
};

// Runs body(draft_context &) as the context's one call.
template <typename F> dspark_status with_context(dspark_draft_context * context, F && body) {
    return guard([&] {
        need(context, "context");
        context->use("draft context", body);
    });
}

// A list of at most DSPARK_BLOCK_MAX values into a struct's array.
template <typename T> void copy_list(const std::vector<T> & from, T * to) {
    std::copy_n(from.begin(), std::min<size_t>(from.size(), DSPARK_BLOCK_MAX), to);
}

// Runs body(session &) as the session's one call.
template <typename F> dspark_status with_session(dspark_session * s, F && body) {
    return guard([&] {
        need(s, "session");
        s->use("session", body);
    });
}

} // namespace

extern "C" {

// --- status -----------------------------------------------------------------------------------------------------------

const char * dspark_version(void) {
    return DSPARK_VERSION;
}

const char * dspark_status_name(dspark_status status) {
    switch (status) {
        case DSPARK_OK:                 return "DSPARK_OK";
        case DSPARK_ERROR_ARGUMENT:     return "DSPARK_ERROR_ARGUMENT";
        case DSPARK_ERROR_FILE:         return "DSPARK_ERROR_FILE";
        case DSPARK_ERROR_FORMAT:       return "DSPARK_ERROR_FORMAT";
        case DSPARK_ERROR_MISMATCH:     return "DSPARK_ERROR_MISMATCH";
        case DSPARK_ERROR_MEMORY:       return "DSPARK_ERROR_MEMORY";
        case DSPARK_ERROR_BACKEND:      return "DSPARK_ERROR_BACKEND";
        case DSPARK_ERROR_CONTEXT_FULL: return "DSPARK_ERROR_CONTEXT_FULL";
        case DSPARK_ERROR_STATE:        return "DSPARK_ERROR_STATE";
        case DSPARK_ERROR_BINDING:      return "DSPARK_ERROR_BINDING";
        case DSPARK_ERROR_CALLBACK:     return "DSPARK_ERROR_CALLBACK";
        case DSPARK_ERROR_INTERNAL:     return "DSPARK_ERROR_INTERNAL";
    }
    return "unknown status";
}

const char * dspark_last_error(void) {
    return last_error.c_str();
}

// --- binding ----------------------------------------------------------------------------------------------------------

dspark_status dspark_bind(void * const * libraries, size_t n_libraries) {
    return guard([&] { bind(libraries, n_libraries); });
}

const char * dspark_build_ggml_version(void) {
    return DSPARK_GGML_VERSION;
}

const char * dspark_bound_ggml_version(void) {
    return dspark::ggml_version ? dspark::ggml_version() : "";
}

const char * dspark_bound_ggml_commit(void) {
    return dspark::ggml_commit ? dspark::ggml_commit() : "";
}

const char * dspark_bound_llama_version(void) {
    return dspark::llama_version ? dspark::llama_version() : "";
}

bool dspark_has_layer_taps(void) {
    return dspark::llama_set_embeddings_layer_inp && dspark::llama_get_embeddings_layer_inp;
}

bool dspark_arch_has_layer_taps(const char * architecture) {
    return architecture && arch_has_layer_taps(architecture);
}

int32_t dspark_device_count(void) {
    return dspark::ggml_backend_dev_count ? (int32_t) dspark::ggml_backend_dev_count() : 0;
}

static ggml_backend_dev_t device_at(int32_t index) {
    return index >= 0 && index < dspark_device_count() ? dspark::ggml_backend_dev_get((size_t) index) : nullptr;
}

const char * dspark_device_name(int32_t index) {
    ggml_backend_dev_t device = device_at(index);
    return device ? dspark::ggml_backend_dev_name(device) : nullptr;
}

const char * dspark_device_description(int32_t index) {
    ggml_backend_dev_t device = device_at(index);
    return device ? dspark::ggml_backend_dev_description(device) : nullptr;
}

const char * dspark_device_kind(int32_t index) {
    ggml_backend_dev_t device = device_at(index);
    if (!device) {
        return nullptr;
    }
    switch (dspark::ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:  return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU:  return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return "igpu";
        default:                            return "accel";
    }
}

// --- kernels ----------------------------------------------------------------------------------------------------------

dspark_status dspark_kernels_install(int32_t mode, uint64_t n_bytes) {
    return guard([&] {
        require_bound();
        switch (mode) {
            case DSPARK_KERNELS_AUTO: return kernels::install(kernels::mode::automatic, n_bytes);
            case DSPARK_KERNELS_ON: return kernels::install(kernels::mode::on, n_bytes);
            case DSPARK_KERNELS_OFF: return kernels::install(kernels::mode::off, n_bytes);
            default: fail(DSPARK_ERROR_ARGUMENT, format("mode of the kernels is %d, expected 0 to 2", mode));
        }
    });
}

dspark_status dspark_kernels_get_state(dspark_kernels_state * state) {
    return guard([&] {
        need_struct(state, "dspark_kernels_state");
        thread_local std::string reason;
        const kernels::state     now = kernels::get_state();
        reason                       = now.reason;
        state->active                = now.active;
        state->packs_weights         = now.packs_weights;
        state->reason                = reason.c_str();
        state->isa                   = now.isa;
        state->n_matmul              = now.n_matmul;
        state->n_attention           = now.n_attention;
        state->n_bytes               = now.n_bytes;
        state->removed               = now.removed;
    });
}

// --- draft ------------------------------------------------------------------------------------------------------------

void dspark_draft_params_init(dspark_draft_params * params) {
    if (params) {
        *params             = {};
        params->struct_size = sizeof(*params);
    }
}

static dspark_status load_draft(const char * path, const char * device, bool weights, dspark_draft ** out_draft) {
    if (out_draft) {
        *out_draft = nullptr;
    }
    return guard([&] {
        need(path, "path");
        need(out_draft, "out_draft");
        *out_draft = new dspark_draft{draft_model::load(path, device, weights)};
    });
}

dspark_status dspark_draft_load(const char * path, const dspark_draft_params * params, dspark_draft ** out_draft) {
    if (out_draft) {
        *out_draft = nullptr;
    }
    if (params) {
        const dspark_status status = guard([&] { need_struct(params, "dspark_draft_params"); });
        if (status != DSPARK_OK) {
            return status;
        }
    }
    return load_draft(path, params ? params->device : nullptr, true, out_draft);
}

dspark_status dspark_draft_inspect(const char * path, dspark_draft ** out_draft) {
    return load_draft(path, nullptr, false, out_draft);
}

void dspark_draft_free(dspark_draft * draft) {
    delete draft;
}

dspark_status dspark_draft_get_info(const dspark_draft * draft, dspark_draft_info * info) {
    return guard([&] {
        need(draft, "draft");
        need_struct(info, "dspark_draft_info");
        const draft_model &   model = *draft->model;
        const draft_hparams & hp    = model.hp;
        info->n_bytes               = model.n_bytes;
        info->n_params              = model.n_params;
        info->n_layer               = hp.n_layer;
        info->n_embd                = hp.n_embd;
        info->n_head                = hp.n_head;
        info->n_head_kv             = hp.n_head_kv;
        info->n_embd_head           = hp.n_embd_head;
        info->n_ff                  = hp.n_ff;
        info->n_vocab               = hp.n_vocab;
        info->n_vocab_draft         = hp.n_vocab_draft;
        info->n_ctx_train           = hp.n_ctx_train;
        info->block_size            = hp.block_size;
        info->n_draft_max           = hp.n_draft_max();
        info->mask_token_id         = hp.mask_token_id;
        info->n_target_layers       = (int32_t) hp.target_layers.size();
        info->markov_rank           = hp.markov_rank;
        info->markov_type           = hp.markov_type;
        info->n_swa                 = hp.n_swa;
        info->sample_from_anchor    = hp.sample_from_anchor;
        info->has_confidence        = model.conf_proj != nullptr;
        info->has_token_embd        = model.tok_embd != nullptr;
        info->has_output            = model.output != nullptr;
    });
}

const int32_t * dspark_draft_target_layers(const dspark_draft * draft) {
    return draft ? draft->model->hp.target_layers.data() : nullptr;
}

const float * dspark_draft_confidence_temperature(const dspark_draft * draft) {
    return draft && !draft->model->hp.confidence_temperature.empty() ? draft->model->hp.confidence_temperature.data() : nullptr;
}

const char * dspark_draft_meta(const dspark_draft * draft, const char * key) {
    if (!draft || !key) {
        return nullptr;
    }
    const auto found = draft->model->meta.find(key);
    return found != draft->model->meta.end() ? found->second.c_str() : nullptr;
}

dspark_status dspark_draft_check_target(const dspark_draft * draft, const struct llama_model * target) {
    return guard([&] {
        need(draft, "draft");
        need(target, "target");
        draft->model->check_target(target_traits::of_model(target));
    });
}

dspark_status dspark_draft_check_target_file(const dspark_draft * draft, const char * target_path) {
    return guard([&] {
        need(draft, "draft");
        need(target_path, "target_path");
        draft->model->check_target(target_traits::of_file(target_path));
    });
}

dspark_status dspark_draft_scatter_logits(const dspark_draft * draft, const float * draft_logits, float * out_logits, int32_t n_vocab) {
    return guard([&] {
        need(draft, "draft");
        need(draft_logits, "draft_logits");
        need(out_logits, "out_logits");
        const draft_model & model = *draft->model;
        const int32_t wanted = model.hp.n_vocab ? model.hp.n_vocab : n_vocab;
        if (n_vocab != wanted || n_vocab < 1) {
            fail(DSPARK_ERROR_ARGUMENT, format("n_vocab is %d, expected the target's %d", n_vocab, wanted));
        }
        if (model.d2t_ids.empty()) {
            std::copy_n(draft_logits, n_vocab, out_logits);
            return;
        }
        for (int32_t id : model.d2t_ids) {
            if (id >= n_vocab) {
                fail(DSPARK_ERROR_ARGUMENT, format("n_vocab is %d, but the draft proposes token %d", n_vocab, id));
            }
        }
        std::fill_n(out_logits, n_vocab, -std::numeric_limits<float>::infinity());
        for (size_t i = 0; i < model.d2t_ids.size(); ++i) {
            out_logits[model.d2t_ids[i]] = draft_logits[i];
        }
    });
}

// --- draft context ----------------------------------------------------------------------------------------------------

void dspark_draft_context_params_init(dspark_draft_context_params * params) {
    if (params) {
        *params             = {};
        params->struct_size = sizeof(*params);
        params->n_threads   = (int32_t) std::max(1u, std::min(4u, std::thread::hardware_concurrency()));
        params->type_k      = GGML_TYPE_F16;
        params->type_v      = GGML_TYPE_F16;
    }
}

dspark_status dspark_draft_context_create(const dspark_draft * draft, const struct llama_model * target,
                                          const dspark_draft_context_params * params, dspark_draft_context ** out_context) {
    if (out_context) {
        *out_context = nullptr;
    }
    return guard([&] {
        need(draft, "draft");
        need(out_context, "out_context");
        dspark_draft_context_params defaults;
        dspark_draft_context_params_init(&defaults);
        *out_context = new dspark_draft_context(std::make_unique<draft_context>(draft->model, target, context_params(params ? *params : defaults)));
    });
}

void dspark_draft_context_free(dspark_draft_context * context) {
    guard([&] { delete context; });
}

dspark_status dspark_draft_context_close(dspark_draft_context * context) {
    return guard([&] {
        need(context, "context");
        context->close("draft context");
    });
}

dspark_status dspark_draft_context_get_state(dspark_draft_context * context, dspark_draft_context_state * state) {
    return with_context(context, [&](draft_context & c) {
        need_struct(state, "dspark_draft_context_state");
        state->kv_size  = c.kv_size();
        state->n_past   = c.n_past();
        state->n_logits = c.n_logits();
    });
}

dspark_status dspark_draft_context_append(dspark_draft_context * context, const float * features, int32_t n_rows) {
    return with_context(context, [&](draft_context & c) {
        need(features, "features");
        if (n_rows < 1) {
            fail(DSPARK_ERROR_ARGUMENT, format("n_rows is %d, expected 1 or more", n_rows));
        }
        c.append(features, n_rows);
    });
}

dspark_status dspark_draft_context_rewind(dspark_draft_context * context, int32_t n_past) {
    return with_context(context, [&](draft_context & c) { c.rewind(n_past); });
}

dspark_status dspark_draft_context_propose(dspark_draft_context * context, int32_t anchor, int32_t n_max, float * out_logits,
                                           dspark_proposal * out_proposal) {
    if (out_proposal) {
        *out_proposal = {};
    }
    return with_context(context, [&](draft_context & c) {
        need(out_proposal, "out_proposal");
        proposal drafted;
        c.propose(anchor, n_max, out_logits != nullptr, nullptr, drafted);
        out_proposal->n              = (int32_t) drafted.ids.size();
        out_proposal->has_confidence = !drafted.confidence_logits.empty();
        copy_list(drafted.ids, out_proposal->ids);
        copy_list(drafted.confidence_logits, out_proposal->confidence_logits);
        if (out_logits) {
            std::copy(drafted.logits.begin(), drafted.logits.end(), out_logits);
        }
    });
}

// --- feature tap ------------------------------------------------------------------------------------------------------

dspark_status dspark_feature_tap_create(dspark_feature_tap ** out_tap) {
    if (out_tap) {
        *out_tap = nullptr;
    }
    return guard([&] {
        need(out_tap, "out_tap");
        require_bound();
        *out_tap = new dspark_feature_tap();
    });
}

void dspark_feature_tap_free(dspark_feature_tap * tap) {
    delete tap;
}

bool dspark_feature_tap_callback(struct ggml_tensor * tensor, bool ask, void * tap) {
    // called by llama.cpp, which cannot take an exception; a missing row is noticed when the rows are collected
    bool go_on = !ask;
    if (!tap) {
        return go_on;
    }
    guard([&] { go_on = static_cast<dspark_feature_tap *>(tap)->on_node(tensor, ask); });
    return go_on;
}

// --- interrupts -------------------------------------------------------------------------------------------------------

bool dspark_interrupt_callback(void *) {
    return interrupts::asked();
}

void dspark_interrupts_begin(void) {
    interrupts::begin();
}

bool dspark_interrupts_end(void) {
    return interrupts::end();
}

// --- session ----------------------------------------------------------------------------------------------------------

void dspark_session_params_init(dspark_session_params * params) {
    if (params) {
        *params             = {};
        params->struct_size = sizeof(*params);
        params->n_draft_max = -1;
        dspark_draft_context_params_init(&params->draft);
    }
}

dspark_status dspark_feature_reader_create(struct llama_context * target, const int32_t * layers, int32_t n_layers, int32_t source,
                                           dspark_feature_tap * tap, dspark_feature_reader ** out_reader) {
    if (out_reader) {
        *out_reader = nullptr;
    }
    return guard([&] {
        need(target, "target");
        need(layers, "layers");
        need(out_reader, "out_reader");
        require_bound();
        if (n_layers < 1 || source < DSPARK_FEATURES_AUTO || source > DSPARK_FEATURES_EVAL) {
            fail(DSPARK_ERROR_ARGUMENT, format("n_layers is %d and source %d, expected 1 or more and a dspark_feature_source", n_layers, source));
        }
        *out_reader = new dspark_feature_reader(
            std::make_unique<feature_reader>(target, std::vector<int32_t>(layers, layers + n_layers), source, tap));
    });
}

void dspark_feature_reader_free(dspark_feature_reader * r) {
    guard([&] { delete r; });
}

dspark_status dspark_feature_reader_close(dspark_feature_reader * r) {
    return guard([&] {
        need(r, "reader");
        r->close("feature reader");
    });
}

dspark_status dspark_feature_reader_read(dspark_feature_reader * r, const int32_t * tokens, int32_t n_tokens, int32_t first_row, int32_t top_k,
                                         float * out_features, int32_t * out_ids, float * out_probs) {
    return guard([&] {
        need(r, "reader");
        need(tokens, "tokens");
        need(out_features, "out_features");
        if (top_k != 0) {
            need(out_ids, "out_ids");
            need(out_probs, "out_probs");
        }
        r->use("feature reader", [&](feature_reader & reader) { reader.read(tokens, n_tokens, first_row, top_k, out_features, out_ids, out_probs); });
    });
}

const char * dspark_feature_reader_source(dspark_feature_reader * r) {
    const char * name = "";
    guard([&] {
        need(r, "reader");
        r->use("feature reader", [&](feature_reader & reader) { name = reader.source_name(); });
    });
    return name;
}

dspark_status dspark_session_create(struct llama_context * target, const dspark_draft * draft, const dspark_session_params * params,
                                    dspark_session ** out_session) {
    if (out_session) {
        *out_session = nullptr;
    }
    return guard([&] {
        need(target, "target");
        need(out_session, "out_session");
        require_bound();
        const dspark_session_params given = session_params_or_default(params);
        std::unique_ptr<drafter>    drafter;
        if (draft) {
            drafter = std::make_unique<draft_context>(draft->model, dspark::llama_get_model(target), context_params(given.draft));
        }
        *out_session = new dspark_session(std::make_unique<session>(target, std::move(drafter), session_params(given)));
    });
}

dspark_status dspark_session_create_with_drafter(struct llama_context * target, const dspark_drafter * drafter,
                                                 const dspark_session_params * params, dspark_session ** out_session) {
    if (out_session) {
        *out_session = nullptr;
    }
    return guard([&] {
        need(target, "target");
        need(out_session, "out_session");
        need_struct(drafter, "dspark_drafter");
        if (!drafter->propose) {
            fail(DSPARK_ERROR_ARGUMENT, "drafter.propose is NULL");
        }
        require_bound();
        const dspark_session_params given = session_params_or_default(params);
        *out_session = new dspark_session(
            std::make_unique<session>(target, std::make_unique<callback_drafter>(*drafter), session_params(given)));
    });
}

void dspark_session_free(dspark_session * s) {
    guard([&] { delete s; });
}

dspark_status dspark_session_close(dspark_session * s) {
    return guard([&] {
        need(s, "session");
        s->close("session");
    });
}

dspark_status dspark_session_append(dspark_session * s, const int32_t * tokens, int32_t n_tokens, int32_t * out_n) {
    if (out_n) {
        *out_n = 0;
    }
    return with_session(s, [&](session & impl) {
        need(tokens, "tokens");
        need(out_n, "out_n");
        *out_n = impl.append(tokens, n_tokens);
    });
}

dspark_status dspark_session_next(dspark_session * s, struct llama_sampler * sampler, int32_t n_draft_max, int32_t * out_token) {
    if (out_token) {
        *out_token = 0;
    }
    return with_session(s, [&](session & impl) {
        need(out_token, "out_token");
        *out_token = impl.next(sampler, n_draft_max);
    });
}

dspark_status dspark_sample(struct llama_context * target, struct llama_sampler * sampler, int32_t row, int32_t * out_token) {
    if (out_token) {
        *out_token = 0;
    }
    return guard([&] {
        need(target, "target");
        need(sampler, "sampler");
        need(out_token, "out_token");
        require_bound();
        require_steps(sampler);
        const float * logits = dspark::llama_get_logits_ith(target, row);
        if (!logits) {
            fail(DSPARK_ERROR_STATE, format("the target has no logits of row %d", row));
        }
        std::vector<llama_token_data> buffer;
        *out_token = sample(sampler, logits, dspark::llama_vocab_n_tokens(dspark::llama_model_get_vocab(dspark::llama_get_model(target))), buffer);
    });
}

dspark_status dspark_session_settle(dspark_session * s) {
    return with_session(s, [&](session & impl) { impl.settle(); });
}

dspark_status dspark_session_rewind(dspark_session * s, int32_t n_tokens) {
    return with_session(s, [&](session & impl) { impl.rewind(n_tokens); });
}

dspark_status dspark_session_adopt(dspark_session * s, const int32_t * tokens, int32_t n_tokens) {
    return with_session(s, [&](session & impl) {
        if (n_tokens > 0) {
            need(tokens, "tokens");
        }
        impl.adopt(tokens, n_tokens);
    });
}

dspark_status dspark_session_save(dspark_session * s, uint8_t ** out_data, size_t * out_size) {
    if (out_data) {
        *out_data = nullptr;
    }
    if (out_size) {
        *out_size = 0;
    }
    return with_session(s, [&](session & impl) {
        need(out_data, "out_data");
        need(out_size, "out_size");
        const std::vector<uint8_t> bytes = impl.save();
        *out_data                        = new uint8_t[bytes.size()];
        *out_size                        = bytes.size();
        std::copy(bytes.begin(), bytes.end(), *out_data);
    });
}

void dspark_saved_free(uint8_t * data) {
    delete[] data;
}

dspark_status dspark_session_load(dspark_session * s, const uint8_t * data, size_t size) {
    return with_session(s, [&](session & impl) {
        need(data, "data");
        impl.load(data, size);
    });
}

dspark_status dspark_session_set_auto_depth(dspark_session * s, bool on) {
    return with_session(s, [&](session & impl) { impl.set_auto_depth(on); });
}

dspark_status dspark_session_get_depth(dspark_session * s, dspark_depth_state * state) {
    return with_session(s, [&](session & impl) {
        need_struct(state, "dspark_depth_state");
        const depth_control * depth = impl.depth();
        *state                      = {};
        state->struct_size          = sizeof(*state);
        state->automatic            = impl.auto_depth();
        if (!depth) {
            return;
        }
        state->paused  = depth->paused();
        state->n_max   = depth->n_draft_max();
        state->t_draft = depth->costs().draft(impl.n_tokens());
        for (int32_t k = 0; k <= state->n_max; ++k) {
            state->t_rows[k] = depth->costs().rows(1 + k, impl.n_tokens());
        }
        for (int32_t k = 0; k < state->n_max; ++k) {
            state->survival[k] = depth->survivals().estimate((size_t) k, 1.0f);
        }
    });
}

dspark_status dspark_session_get_state(dspark_session * s, dspark_session_state * state) {
    return with_session(s, [&](session & impl) {
        need_struct(state, "dspark_session_state");
        state->disabled_reason = impl.disabled_reason();
        state->match_reason    = impl.match_reason();
        state->feature_source  = impl.source_name();
        state->exact           = impl.is_exact();
        state->n_tokens        = impl.n_tokens();
        state->n_ctx           = impl.n_ctx();
        state->n_draft_past    = impl.n_draft_past();
        state->pending         = impl.pending();
        state->logits_row      = impl.logits_row();
        state->has_round       = impl.has_round();
    });
}

dspark_status dspark_session_get_tokens(dspark_session * s, int32_t * out_tokens, int32_t n_max, int32_t * out_n) {
    if (out_n) {
        *out_n = 0;
    }
    return with_session(s, [&](session & impl) {
        need(out_tokens, "out_tokens");
        need(out_n, "out_n");
        *out_n = std::max(0, std::min(n_max, impl.n_tokens()));
        std::copy_n(impl.tokens().begin(), *out_n, out_tokens);
    });
}

dspark_status dspark_session_get_stats(dspark_session * s, dspark_stats * stats) {
    return with_session(s, [&](session & impl) {
        need_struct(stats, "dspark_stats");
        *stats = impl.stats();
    });
}

dspark_status dspark_session_reset_stats(dspark_session * s) {
    return with_session(s, [&](session & impl) { impl.reset_stats(); });
}

dspark_status dspark_session_get_round(dspark_session * s, dspark_round * round) {
    return with_session(s, [&](session & impl) {
        need_struct(round, "dspark_round");
        const session::round_view last = impl.last_round();
        round->position                = last.position;
        round->anchor                  = last.anchor;
        round->n_drafted               = last.result.n_drafted();
        round->n_accepted              = last.result.n_accepted();
        round->n_sampled               = last.n_sampled;
        round->has_confidence          = !last.confidence_logits.empty();
        copy_list(last.result.drafted(), round->drafted);
        copy_list(last.confidence_logits, round->confidence_logits);
    });
}

} // extern "C"
