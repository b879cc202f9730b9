#include "draft_context.h"

#include "snapshot.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace dspark {

namespace {

constexpr int32_t cell_step  = 256; // attention looks at a multiple of this many cells, so that graphs last
constexpr int32_t n_bulk_min = 40;  // more rows than this are faster in one bulk injection, unused rows included (F16, 2 cores)

int32_t round_up(int32_t n, int32_t step) {
    return (n + step - 1) / step * step;
}

} // namespace

draft_context::draft_context(std::shared_ptr<const draft_model> model, const llama_model * target, const params & settings)
    : model_(std::move(model)), params_(settings) {
    require_bound();
    if (!model_->has_weights) {
        fail(DSPARK_ERROR_STATE, "the draft \"" + model_->path + "\" was only inspected, not loaded");
    }
    if (settings.n_threads < 1 || settings.n_threads > 512) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_threads is %d, expected 1 to 512", settings.n_threads));
    }
    const draft_hparams & hp = model_->hp;
    for (ggml_type type : {settings.type_k, settings.type_v}) {
        const bool is_known = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0 ||
                              type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1;
        if (!is_known || hp.n_embd_head % ggml_blck_size(type) != 0) {
            fail(DSPARK_ERROR_ARGUMENT, format("the draft's cache cannot have type %s with a head size of %d; expected f32, f16, bf16, or "
                                               "q8_0, q4_0, q4_1, q5_0, q5_1 with heads that are multiples of 32",
                                               ggml_type_name(type), hp.n_embd_head));
        }
    }
    if (target) {
        model_->check_target(target_traits::of_model(target));
    }
    device_ = new_backend(model_->device, settings.n_threads);
    if (model_->device != find_device(nullptr)) {
        cpu_ = new_backend(find_device(nullptr), settings.n_threads);
    }
    borrow_weights(target);
    picks_.resize((size_t) hp.n_draft_max());
    for (slot_pick & pick : picks_) {
        pick.rows.reserve(n_pick_rows);
    }
}

// An operation on a borrowed weight, or on a cache, must be possible where the scheduler will put it: it aborts otherwise.
void draft_context::require_runnable(ggml_tensor * op, const char * what) const {
    const ggml_tensor * weight = op->src[0];
    for (const backend_ptr * backend : {&device_, &cpu_}) {
        if (!*backend) {
            continue;
        }
        ggml_backend_dev_t device = backend == &device_ ? model_->device : find_device(nullptr);
        const bool holds = !weight->buffer || ggml_backend_supports_buft(backend->get(), ggml_backend_buffer_get_type(weight->buffer));
        if (holds && ggml_backend_dev_supports_op(device, op)) {
            return;
        }
    }
    fail(DSPARK_ERROR_MISMATCH, format("the draft runs on device %s, which cannot use %s of type %s where the target keeps it; "
                                       "load the draft on the target's device or convert it with --self-contained",
                                       ggml_backend_dev_name(model_->device), what, ggml_type_name(weight->type)));
}

void draft_context::borrow_weights(const llama_model * target) {
    const draft_hparams & hp = model_->hp;
    auto borrow = [&](const char * name) -> ggml_tensor * {
        if (!llama_model_get_tensor) {
            fail(DSPARK_ERROR_MISMATCH, format("the draft \"%s\" borrows the target's weights, which this llama.cpp does not hand out; "
                                               "convert it with --self-contained",
                                               model_->path.c_str()));
        }
        // the graph only reads it
        return const_cast<ggml_tensor *>(llama_model_get_tensor(target, name));
    };
    auto need_target = [&](const char * what) {
        if (!target) {
            fail(DSPARK_ERROR_MISMATCH, format("the draft \"%s\" has no %s of its own and no target was given to borrow it from",
                                               model_->path.c_str(), what));
        }
    };
    auto check = [&](ggml_tensor * t, const char * what) {
        if (!t || t->ne[0] != hp.n_embd || t->ne[1] != llama_vocab_n_tokens(llama_model_get_vocab(target)) || !t->buffer) {
            fail(DSPARK_ERROR_MISMATCH, format("the target has no %s of shape {%d, %d} that the draft \"%s\" could borrow", what, hp.n_embd,
                                               llama_vocab_n_tokens(llama_model_get_vocab(target)), model_->path.c_str()));
        }
    };

    shared_.tok_embd = model_->tok_embd;
    if (!shared_.tok_embd) {
        need_target("embedding");
        shared_.tok_embd = borrow("token_embd.weight");
        check(shared_.tok_embd, "embedding");
    }
    shared_.output = model_->output;
    if (!shared_.output) {
        need_target("head");
        // a tied target has no output.weight
        shared_.output = borrow("output.weight");
        shared_.output = shared_.output ? shared_.output : borrow("token_embd.weight");
        check(shared_.output, "head");
    }

    ggml_context_ptr ctx  = new_meta_context(8);
    ggml_tensor *    ids  = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, hp.block_size);
    ggml_tensor *    rows = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, hp.n_embd, hp.n_draft_max());
    require_runnable(ggml_get_rows(ctx.get(), shared_.tok_embd, ids), "an embedding");
    require_runnable(ggml_mul_mat(ctx.get(), shared_.output, rows), "a head");
}

// Makes room for positions [0, n_cells); what is cached stays.
void draft_context::reserve_cells(int32_t n_cells) {
    if (n_cells <= kv_.n_cells) {
        return;
    }
    // doubling: the memory follows the sequences that are really decoded, not the target's context size
    int32_t n_new = std::max(2 * kv_.n_cells, 2 * cell_step);
    if (params_.n_ctx > 0) {
        n_new = std::min(n_new, round_up(params_.n_ctx, cell_step));
    }
    n_new = std::max(n_new, round_up(n_cells, cell_step));

    const draft_hparams & hp      = model_->hp;
    const int64_t         n_embd  = (int64_t) hp.n_embd_head * hp.n_head_kv;
    kv_tensors            kv;
    kv.n_cells                    = n_new;
    ggml_context_ptr      context = new_meta_context(2 * (size_t) hp.n_layer);
    for (int32_t il = 0; il < hp.n_layer; ++il) {
        kv.k.push_back(ggml_new_tensor_2d(context.get(), params_.type_k, n_embd, n_new + 1));
        kv.v.push_back(ggml_new_tensor_2d(context.get(), params_.type_v, n_embd, n_new + 1));
    }
    buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_dev_buffer_type(model_->device)));
    if (!buffer) {
        fail(DSPARK_ERROR_MEMORY, format("cannot allocate the draft's cache of %d positions (%zu bytes) on device %s", n_new,
                                         (size_t) hp.n_layer * (size_t) (n_new + 1) *
                                             (ggml_row_size(params_.type_k, n_embd) + ggml_row_size(params_.type_v, n_embd)),
                                         ggml_backend_dev_name(model_->device)));
    }
    // cells that were never written are masked, but a masked NaN would still spoil the sum
    ggml_backend_buffer_clear(buffer.get(), 0);
    std::vector<uint8_t> bytes;
    const int32_t        n_kept = n_injected_ > n_first_ ? n_injected_ : 0;
    for (size_t i = 0; n_kept > 0 && i < kv.k.size(); ++i) {
        for (auto [from, to] : {std::pair(kv_.k[i], kv.k[i]), std::pair(kv_.v[i], kv.v[i])}) {
            bytes.resize((size_t) n_kept * from->nb[1]);
            ggml_backend_tensor_get(from, bytes.data(), 0, bytes.size());
            ggml_backend_tensor_set(to, bytes.data(), 0, bytes.size());
        }
    }
    // the graphs hold views of the old tensors
    inject_       = ready_graph{};
    bulk_         = ready_graph{};
    round_        = ready_graph{};
    round_logits_ = ready_graph{};
    last_         = nullptr;
    kv_                              = std::move(kv);
    kv_context_                      = std::move(context);
    kv_buffer_                       = std::move(buffer);
}

draft_context::ready_graph & draft_context::prepare_injection(int32_t n_rows) {
    graph_options options;
    options.n_inject = n_rows;
    return prepare(n_rows == n_bulk_rows ? bulk_ : inject_, options);
}

draft_context::ready_graph & draft_context::prepare_round(bool with_logits, bool drawn) {
    graph_options options;
    options.with_block  = true;
    options.with_logits = with_logits;
    options.n_kv        = round_up(n_past() + model_->hp.block_size, cell_step);
    // another device has no custom operations: the scheduler would bring every slot's logits to the CPU
    options.picks       = !cpu_ || drawn ? picks_.data() : nullptr;
    return prepare(with_logits ? round_logits_ : round_, options);
}

draft_context::ready_graph & draft_context::prepare(ready_graph & ready, graph_options options) {
    if (ready.sched && ready.g.options.n_kv == options.n_kv && ready.g.options.picks == options.picks) {
        return ready;
    }
    options.keep_nodes = params_.keep_nodes;

    ready_graph    fresh;
    ggml_backend_t backends[] = {device_.get(), cpu_.get()};
    fresh.g     = build_draft_graph(*model_, shared_, kv_, options);
    fresh.sched = sched_ptr(ggml_backend_sched_new(backends, nullptr, cpu_ ? 2 : 1, (size_t) ggml_graph_n_nodes(fresh.g.graph) * 2 + 64, false, false));
    if (!fresh.sched || !ggml_backend_sched_alloc_graph(fresh.sched.get(), fresh.g.graph)) {
        fail(DSPARK_ERROR_MEMORY, format("cannot allocate the draft's compute buffer for %d positions", options.n_kv));
    }
    ready = std::move(fresh);
    return ready;
}

void draft_context::set_inject_inputs(const draft_graph & g, const float * rows, int32_t n_rows) {
    const size_t  width = (size_t) model_->hp.n_features();
    const int32_t n     = g.options.n_inject;
    feature_rows_.assign(width * (size_t) n, 0.0f);
    // a NaN would stay in the cache after a rewind, where the mask does not keep it out of the sums
    std::transform(rows, rows + width * (size_t) n_rows, feature_rows_.begin(), [](float x) { return std::isfinite(x) ? x : 0.0f; });
    int32_t pos[n_bulk_rows];
    int64_t cell[n_bulk_rows];
    for (int32_t i = 0; i < n; ++i) {
        pos[i]  = i < n_rows ? n_injected_ + i : 0;
        cell[i] = i < n_rows ? n_injected_ + i : kv_.n_cells;
    }
    ggml_backend_tensor_set(g.features, feature_rows_.data(), 0, feature_rows_.size() * sizeof(float));
    ggml_backend_tensor_set(g.inject_pos, pos, 0, (size_t) n * sizeof(int32_t));
    ggml_backend_tensor_set(g.inject_cell, cell, 0, (size_t) n * sizeof(int64_t));
}

void draft_context::set_block_inputs(const draft_graph & g, int32_t anchor) {
    const draft_hparams & hp = model_->hp;
    const size_t          S  = (size_t) hp.block_size;
    std::vector<int32_t>  ids(S, hp.mask_token_id), pos(S);
    std::vector<int64_t>  cell(S);
    ids[0] = anchor;
    for (size_t i = 0; i < S; ++i) {
        pos[i]  = n_past() + (int32_t) i;
        cell[i] = pos[i];
    }
    ggml_backend_tensor_set(g.block_ids, ids.data(), 0, S * sizeof(int32_t));
    ggml_backend_tensor_set(g.block_pos, pos.data(), 0, S * sizeof(int32_t));
    ggml_backend_tensor_set(g.block_cell, cell.data(), 0, S * sizeof(int64_t));
    for (int is_swa = 0; is_swa < 2; ++is_swa) {
        for (int is_causal = 0; is_causal < 2; ++is_causal) {
            if (g.mask[is_swa][is_causal]) {
                fill_mask(g.mask[is_swa][is_causal], is_swa, is_causal);
            }
        }
    }
}

// Slot s stands at position n + s.  Context keys are the cells before n, block keys the S cells from n on.
void draft_context::fill_mask(ggml_tensor * mask, bool is_swa, bool is_causal) {
    const draft_hparams & hp      = model_->hp;
    const int32_t         C       = (int32_t) mask->ne[0];
    const int32_t         S       = hp.block_size;
    const int32_t         n       = n_past();
    const uint16_t        visible = 0;
    const uint16_t        hidden  = 0xfc00; // -inf in f16
    mask_values_.assign((size_t) C * (size_t) S, hidden);
    for (int32_t s = 0; s < S; ++s) {
        // a window that moves with the query also applies inside the block; one fixed at the anchor reaches W cells before it
        int32_t first = 0;
        if (is_swa) {
            first = hp.swa_from_anchor ? n - hp.n_swa : n + s - hp.n_swa + 1;
        }
        const int32_t last = is_causal ? n + s : n + S - 1;
        uint16_t *    row  = mask_values_.data() + (size_t) s * (size_t) C;
        std::fill(row + std::max(first, n_first_), row + last + 1, visible);
    }
    ggml_backend_tensor_set(mask, mask_values_.data(), 0, mask_values_.size() * sizeof(uint16_t));
}

void draft_context::compute(ready_graph & ready) {
    using clock      = std::chrono::steady_clock;
    const auto start = clock::now();
    const ggml_status status = ggml_backend_sched_graph_compute(ready.sched.get(), ready.g.graph);
    compute_us_ += std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - start).count();
    if (status != GGML_STATUS_SUCCESS) {
        fail(status == GGML_STATUS_ALLOC_FAILED ? DSPARK_ERROR_MEMORY : DSPARK_ERROR_BACKEND,
             format("ggml could not compute the draft's graph (status %d)", (int) status));
    }
}

// Puts pending rows into the cache until at most n_keep are left.
void draft_context::inject_down_to(int32_t n_keep) {
    const size_t  width  = (size_t) model_->hp.n_features();
    const int32_t n_rows = n_pending();
    int32_t       n_done = 0;
    auto drop_done = [&] { pending_.erase(pending_.begin(), pending_.begin() + (ptrdiff_t) (width * (size_t) n_done)); };
    try {
        while (n_rows - n_done > n_keep) {
            const int32_t n_left = n_rows - n_done;
            const int32_t n_most = n_left > n_bulk_min ? n_bulk_rows : n_inject_rows;
            const int32_t n      = std::min(n_left, n_most);
            ready_graph & ready  = prepare_injection(n_most);
            set_inject_inputs(ready.g, pending_.data() + width * (size_t) n_done, n);
            compute(ready);
            n_injected_ += n;
            n_done += n;
        }
    } catch (...) {
        drop_done();
        throw;
    }
    drop_done();
}

void draft_context::flush() {
    reserve_cells(n_past());
    inject_down_to(0);
}

void draft_context::append(const float * features, int32_t n_rows) {
    const int32_t before = n_past();
    reserve_cells(before + n_rows);
    pending_.insert(pending_.end(), features, features + (size_t) n_rows * (size_t) model_->hp.n_features());
    try {
        inject_down_to(n_bulk_rows - 1); // the next round takes the last rows along
    } catch (...) {
        rewind(before);
        throw;
    }
}

void draft_context::rewind(int32_t n_past) {
    if (n_past < 0 || n_past > this->n_past()) {
        fail(DSPARK_ERROR_ARGUMENT, format("cannot rewind the draft to position %d, it holds %d", n_past, this->n_past()));
    }
    n_injected_ = std::min(n_injected_, n_past);
    n_first_    = std::min(n_first_, n_past);
    pending_.resize((size_t) (n_past - n_injected_) * (size_t) model_->hp.n_features());
}

void draft_context::restart(int32_t pos) {
    pending_.clear();
    n_first_ = n_injected_ = pos;
}

// n_first, n_past, types, layers, row width; then of each layer the rows of K and of V.
void draft_context::save(snapshot_writer & to) {
    flush();
    const draft_hparams & hp = model_->hp;
    for (int32_t value : {n_first_, n_injected_, (int32_t) params_.type_k, (int32_t) params_.type_v, hp.n_layer, hp.n_embd_head * hp.n_head_kv}) {
        to.put(value);
    }
    const size_t n_rows = (size_t) (n_injected_ - n_first_);
    for (size_t i = 0; n_rows > 0 && i < kv_.k.size(); ++i) {
        for (const ggml_tensor * rows : {kv_.k[i], kv_.v[i]}) {
            ggml_backend_tensor_get(rows, to.grow(n_rows * rows->nb[1]), (size_t) n_first_ * rows->nb[1], n_rows * rows->nb[1]);
        }
    }
}

void draft_context::load(snapshot_reader & from, int32_t n_past) {
    const draft_hparams & hp      = model_->hp;
    const int32_t         n_first = from.get<int32_t>();
    const int32_t         n_saved = from.get<int32_t>();
    const int32_t         type_k  = from.get<int32_t>();
    const int32_t         type_v  = from.get<int32_t>();
    const int32_t         n_layer = from.get<int32_t>();
    const int32_t         n_embd  = from.get<int32_t>();
    if (n_first < 0 || n_first > n_past || n_saved != n_past || n_layer != hp.n_layer || n_embd != hp.n_embd_head * hp.n_head_kv) {
        fail(DSPARK_ERROR_FORMAT, format("the saved state of the draft has positions %d to %d, %d layers and rows of %d values, expected an end at %d, "
                                         "%d layers and rows of %d",
                                         n_first, n_saved, n_layer, n_embd, n_past, hp.n_layer, hp.n_embd_head * hp.n_head_kv));
    }
    if (type_k != params_.type_k || type_v != params_.type_v) {
        fail(DSPARK_ERROR_MISMATCH, format("the saved state of the draft has a cache of types %d and %d, this draft's cache has %s and %s", type_k, type_v,
                                           ggml_type_name(params_.type_k), ggml_type_name(params_.type_v)));
    }
    const size_t    n_rows = (size_t) (n_past - n_first);
    const size_t    size_k = ggml_row_size(params_.type_k, n_embd);
    const size_t    size_v = ggml_row_size(params_.type_v, n_embd);
    const uint8_t * bytes  = from.take(n_rows * (size_k + size_v) * (size_t) n_layer);
    from.require_end();

    reserve_cells(n_past);
    for (size_t i = 0; n_rows > 0 && i < kv_.k.size(); ++i) {
        ggml_backend_tensor_set(kv_.k[i], bytes, (size_t) n_first * size_k, n_rows * size_k);
        bytes += n_rows * size_k;
        ggml_backend_tensor_set(kv_.v[i], bytes, (size_t) n_first * size_v, n_rows * size_v);
        bytes += n_rows * size_v;
    }
    pending_.clear();
    n_first_    = n_first;
    n_injected_ = n_past;
}

const char * draft_context::unable_reason() const {
    const bool fits = params_.n_ctx == 0 || n_past() + model_->hp.block_size <= params_.n_ctx;
    return fits ? nullptr : "a block no longer fits into the draft's context";
}

// The tokens of slots are drawn by numbers that the seed alone decides (splitmix64).
void draft_context::set_picks(const drawing * how) {
    uint64_t state = how ? how->seed : 0;
    for (slot_pick & pick : picks_) {
        pick.steps = how ? &how->steps : nullptr;
        state += 0x9e3779b97f4a7c15u;
        uint64_t x = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
        x          = (x ^ x >> 27) * 0x94d049bb133111ebu;
        pick.u     = (double) ((x ^ x >> 31) >> 11) / 9007199254740992.0; // 2^53
    }
}

void draft_context::drawn_from(int32_t k, distribution & out) const {
    const std::vector<llama_token_data> & rows = picks_[(size_t) k].rows;
    out.clear();
    for (const llama_token_data & t : rows) {
        out.push_back({model_->d2t_ids.empty() ? t.id : model_->d2t_ids[(size_t) t.id], t.p});
    }
    std::sort(out.begin(), out.end(), [](const token_prob & a, const token_prob & b) { return a.id < b.id; });
}

void draft_context::propose(int32_t anchor, int32_t n_max, bool with_logits, const drawing * how, proposal & out) {
    const draft_hparams & hp = model_->hp;
    out                      = proposal{};
    const int32_t n_vocab    = (int32_t) shared_.tok_embd->ne[1];
    if (anchor < 0 || anchor >= n_vocab) {
        fail(DSPARK_ERROR_ARGUMENT, format("the anchor is token %d, expected 0 to %d", anchor, n_vocab - 1));
    }
    if (n_max < 1) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_max is %d, expected 1 or more", n_max));
    }
    if (n_past() == n_first_) {
        fail(DSPARK_ERROR_STATE, "the draft has no target features yet: append some before proposing");
    }
    if (unable_reason()) {
        return;
    }
    reserve_cells(n_past() + hp.block_size);
    inject_down_to(n_inject_rows);

    ready_graph & ready = prepare_round(with_logits, how != nullptr);
    set_picks(how);
    set_inject_inputs(ready.g, pending_.data(), n_pending());
    set_block_inputs(ready.g, anchor);
    compute(ready);
    n_injected_ += n_pending();
    pending_.clear();
    last_ = &ready;

    const int32_t n = std::min(n_max, hp.n_draft_max());
    for (ggml_tensor * ids : ready.g.ids) {
        std::vector<int32_t> step((size_t) ids->ne[0]);
        ggml_backend_tensor_get(ids, step.data(), 0, step.size() * sizeof(int32_t));
        out.ids.insert(out.ids.end(), step.begin(), step.end());
    }
    if (ready.g.confidence) {
        out.confidence_logits.resize(out.ids.size());
        ggml_backend_tensor_get(ready.g.confidence, out.confidence_logits.data(), 0, out.ids.size() * sizeof(float));
        for (size_t k = 0; k < hp.confidence_temperature.size(); ++k) {
            out.confidence_logits[k] /= hp.confidence_temperature[k];
        }
    }
    for (ggml_tensor * logits : ready.g.logits) {
        const size_t at = out.logits.size();
        out.logits.resize(at + (size_t) ggml_nelements(logits));
        ggml_backend_tensor_get(logits, out.logits.data() + at, 0, ggml_nbytes(logits));
    }
    out.truncate((size_t) n);
}

std::vector<float> draft_context::node(const std::string & name, std::vector<int64_t> & ne) const {
    ne.clear();
    for (int i = 0; last_ && i < ggml_graph_n_nodes(last_->g.graph); ++i) {
        ggml_tensor * t = ggml_graph_node(last_->g.graph, i);
        if (name == t->name && t->type == GGML_TYPE_F32) {
            ne.assign(t->ne, t->ne + GGML_MAX_DIMS);
            std::vector<float> values((size_t) ggml_nelements(t));
            ggml_backend_tensor_get(t, values.data(), 0, values.size() * sizeof(float));
            return values;
        }
    }
    return {};
}

size_t draft_context::gathered_bytes(const std::string & weight) const {
    size_t n_bytes = 0;
    for (int i = 0; last_ && i < ggml_graph_n_nodes(last_->g.graph); ++i) {
        const ggml_tensor * t = ggml_graph_node(last_->g.graph, i);
        n_bytes += t->op == GGML_OP_GET_ROWS && weight == t->src[0]->name ? ggml_nbytes(t) : 0;
    }
    return n_bytes;
}

std::vector<uint8_t> draft_context::cache_rows(int32_t il, bool v) {
    flush();
    if (n_injected_ == 0) {
        return {};
    }
    const ggml_tensor *  cache = v ? kv_.v[(size_t) il] : kv_.k[(size_t) il];
    std::vector<uint8_t> bytes((size_t) n_injected_ * cache->nb[1]);
    ggml_backend_tensor_get(cache, bytes.data(), 0, bytes.size());
    return bytes;
}

} // namespace dspark
