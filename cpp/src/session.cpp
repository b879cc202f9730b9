#include "session.h"

#include "snapshot.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace dspark {

namespace {

// Adds the time until it goes out of scope to a counter of microseconds.
class stopwatch {
  public:
    explicit stopwatch(int64_t & counter) : counter_(counter), start_(clock::now()) {}
    ~stopwatch() { counter_ += std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - start_).count(); }

    double seconds() const { return std::chrono::duration<double>(clock::now() - start_).count(); }

  private:
    using clock = std::chrono::steady_clock;
    int64_t &         counter_;
    clock::time_point start_;
};

const std::vector<int32_t> no_layers;

} // namespace

// Null, or why a session can never draft; it then reads no features either.
static const char * never_reason(llama_context * ctx, const drafter * draft, const session::params & settings) {
    if (!draft) {
        return "no draft was given";
    }
    if (settings.n_draft_max == 0) {
        return "n_draft_max is 0";
    }
    if (!llama_get_causal_attn(ctx)) {
        return "the target's attention is not causal: a drafted token would change the logits of those before it";
    }
    return no_rollback_reason(ctx);
}

session::session(llama_context * ctx, std::unique_ptr<drafter> draft, const params & settings)
    : owned_(ctx), draft_(std::move(draft)), disabled_reason_(never_reason(ctx, draft_.get(), settings)),
      target_(ctx, disabled_reason_ ? no_layers : draft_->target_layers(), settings.feature_source, settings.feature_tap), params_(settings) {
    if (settings.n_ctx < 0 || settings.n_ctx > target_.n_ctx()) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_ctx is %d, expected 0 or up to the target's context size, %d", settings.n_ctx, target_.n_ctx()));
    }
    if (settings.n_draft_max < -1) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_draft_max is %d, expected -1 (what the draft proposes), 0 (plain) or more", settings.n_draft_max));
    }
    if (!(settings.confidence_min >= 0.0f && settings.confidence_min <= 1.0f)) {
        fail(DSPARK_ERROR_ARGUMENT, format("confidence_min is %g, expected 0 to 1", (double) settings.confidence_min));
    }
    if (!disabled_reason_) {
        depth_ = std::make_unique<depth_control>(draft_->n_draft_max());
    }
    n_ctx_ = settings.n_ctx > 0 ? settings.n_ctx : target_.n_ctx();
    tokens_.reserve((size_t) n_ctx_); // no allocation can fail between a decode and its record
    reset_stats();
    if (settings.tokens.empty()) {
        target_.clear();
    } else {
        adopt(settings.tokens.data(), (int32_t) settings.tokens.size());
    }
}

session::~session() {
    // the caller's context keeps what it has accepted
    if ((round_open_ || tail_stale_) && target_.last_position() >= n_tokens()) {
        target_.remove_from(n_tokens());
    }
}

void session::reset_stats() {
    stats_             = {};
    stats_.struct_size = sizeof(stats_);
}

const char * session::disabled_reason() const {
    if (disabled_reason_) {
        return disabled_reason_;
    }
    if (draft_failure_) {
        return draft_failure_;
    }
    return target_.n_batch() < 2 ? "the target's n_batch is 1: there is no room for a draft" : draft_->unable_reason();
}

int32_t session::n_draft_past() const {
    if (disabled_reason_) {
        return 0;
    }
    return draft_->n_past() + n_owed_ + (round_open_ && !draft_failure_ ? round_.row() + 1 : 0);
}

// A host may decode on the same context behind our back; its cells must not be taken for ours.
void session::require_untouched() {
    drop_stale_tail();
    if (is_lost_ && target_.last_position() < 0) {
        decode_again();
    }
    const int32_t expected = n_tokens() - 1 + (round_open_ ? round_.n_drafted() - round_.n_accepted() : 0);
    const int32_t seen     = target_.last_position();
    if (seen != expected) {
        fail(DSPARK_ERROR_STATE, format("the target's memory was changed from outside: its last position is %d, expected %d; "
                                        "tell the session what it holds now (adopt), or rewind it to 0 and append the tokens again",
                                        seen, expected));
    }
}

// A batch behind the sequence.
void session::decode(const int32_t * tokens, int32_t n, int32_t first_logits, std::vector<float> & features) {
    try {
        target_.decode(tokens, n, n_tokens(), first_logits, features);
    } catch (...) {
        is_lost_ = target_.last_position() < n_tokens() - 1;
        throw;
    }
}

// The target's memory could not drop a tail in place: it is empty now, and the kept tokens go through it once more.  Their features
// are known already.  What fails here is done by the next call.
void session::decode_again() {
    is_lost_ = true;
    std::vector<float> unused;
    try {
        for (int32_t pos = 0; pos < n_tokens();) {
            const int32_t n = std::min(n_tokens() - pos, target_.n_batch());
            target_.decode(tokens_.data() + pos, n, pos, n - 1, unused);
            pos += n;
        }
    } catch (...) {
        target_.clear();
        throw;
    }
    is_lost_ = false;
}

void session::remove_target_tail() {
    if (!target_.remove_from(n_tokens())) {
        decode_again();
    }
    is_lost_ = is_lost_ && target_.last_position() < n_tokens() - 1;
}

void session::owe_drafter(const std::vector<float> & features, int32_t n_rows) {
    if (!disabled_reason_ && !draft_failure_) {
        const size_t width = n_rows > 0 ? draft_->target_layers().size() * (size_t) llama_model_n_embd(target_.model()) : 0;
        owed_features_.insert(owed_features_.end(), features.begin(), features.begin() + (ptrdiff_t) (width * (size_t) n_rows));
        n_owed_ += n_rows;
    }
}

void session::pay_drafter() {
    if (n_owed_ > 0) {
        draft_->append(owed_features_.data(), n_owed_);
        forget_owed(n_owed_);
    }
}

// Runs what only the draft can fail at.  That costs speed and not the call: decoding goes on without it, until the session is back at
// what the draft holds or begins anew.  What a drafter of the caller's reports is the caller's to see.
template <typename F> bool session::draft_does(F && body) {
    try {
        body();
        return true;
    } catch (const error & e) {
        if (e.status != DSPARK_ERROR_BACKEND && e.status != DSPARK_ERROR_MEMORY) {
            throw;
        }
        draft_failure_ = e.status == DSPARK_ERROR_MEMORY ? "there was no memory for the draft" : "the draft's graph could not be computed";
    } catch (const std::bad_alloc &) {
        draft_failure_ = "there was no memory for the draft";
    }
    forget_owed(n_owed_);
    return false;
}

// The newest rows are taken back.
void session::forget_owed(int32_t n_rows) {
    if (n_rows > 0) {
        owed_features_.resize(owed_features_.size() / (size_t) n_owed_ * (size_t) (n_owed_ - n_rows));
        n_owed_ -= n_rows;
    }
}

// Rows 0 .. row() of the round belong to decoded, accepted tokens.  is_complete: all that it could give was taken.
void session::close_round(bool is_complete) {
    if (!round_open_) {
        return;
    }
    round_open_ = false;
    logits_row_ = -1;
    if (round_.n_accepted() < round_.n_drafted()) {
        stopwatch watch(stats_.t_verify_us);
        remove_target_tail();
        round_costs_.target_s += watch.seconds();
    }
    if (round_is_auto_) {
        // drafts of a round that nobody reads to its end were paid for in vain
        round_costs_.n_emitted = is_complete ? 1 + round_.n_accepted() : std::max(1, round_sampled_);
        depth_->close_round(round_costs_);
    }
    stopwatch watch(stats_.t_draft_us);
    draft_does([&] {
        owe_drafter(round_features_, round_.row() + 1);
        pay_drafter();
    });
}

void session::drop_stale_tail() {
    if (tail_stale_) {
        remove_target_tail();
        tail_stale_ = false;
    }
}

void session::settle() {
    drop_stale_tail();
    close_round();
}

int32_t session::append(const int32_t * tokens, int32_t n_tokens_in) {
    if (n_tokens_in < 1) {
        fail(DSPARK_ERROR_ARGUMENT, format("append got %d tokens, expected at least one", n_tokens_in));
    }
    target_.require_tokens(tokens, n_tokens_in);
    require_untouched();
    if (n_tokens() + n_tokens_in > n_ctx_) {
        fail(DSPARK_ERROR_CONTEXT_FULL, format("%d more tokens after %d do not fit into a context of %d", n_tokens_in, n_tokens(), n_ctx_));
    }
    close_round();
    pending_ = -1;

    has_round_ = false;

    const int32_t      n = std::min(n_tokens_in, target_.n_batch());
    std::vector<float> features;
    logits_row_ = -1;
    {
        stopwatch watch(stats_.t_prompt_us);
        decode(tokens, n, params_.logits_all ? 0 : n - 1, features);
    }
    try {
        stopwatch watch(stats_.t_inject_us);
        draft_does([&] {
            owe_drafter(features, n);
            pay_drafter();
        });
    } catch (...) {
        if (n_owed_ >= n) {
            forget_owed(n);
        }
        // not now: a drafter's callback may have closed the target
        tail_stale_ = true;
        throw;
    }
    tokens_.insert(tokens_.end(), tokens, tokens + n);
    logits_row_ = n - 1;
    stats_.n_prompt += n;
    return n;
}

int32_t session::draft_limit(int32_t n_draft_max) const {
    if (disabled_reason_ || draft_failure_ || n_draft_past() != n_tokens()) {
        return 0;
    }
    int32_t n = draft_->n_draft_max();
    n         = params_.n_draft_max >= 0 ? std::min(n, params_.n_draft_max) : n;
    n         = n_draft_max >= 0 ? std::min(n, n_draft_max) : n;
    // the anchor and its drafts take 1 + n positions and rows of one batch
    return std::max(0, std::min({n, n_ctx_ - n_tokens() - 1, target_.n_batch() - 1, target_.n_rollback()}));
}

// Null, or why drafts are verified by sample-and-match although rejection sampling was asked for.
const char * session::why_match(llama_sampler * sampler) const {
    if (params_.verify == DSPARK_VERIFY_MATCH || disabled_reason_) {
        return nullptr;
    }
    return draft_->can_draw() ? sampler_chain::opaque_reason(sampler) : "the drafter does not tell the distributions of its tokens";
}

// At most limit tokens to follow the pending one.
void session::propose(llama_sampler * sampler, int32_t limit, proposal & drafted) {
    const int64_t before = draft_->compute_us();
    stopwatch     watch(stats_.t_draft_us);
    pay_drafter();
    round_is_drawn_ = params_.verify == DSPARK_VERIFY_REJECTION && !match_reason_;
    if (round_is_drawn_) {
        sampler_chain chain(sampler, candidates_);
        chain.list_shaping_steps(drawing_.steps);
        drawing_.seed = (uint64_t) chain.random_bits() << 32 | chain.random_bits();
    }
    draft_->propose(pending_, limit, round_is_drawn_ ? &drawing_ : nullptr, drafted);
    stats_.t_draft_compute_us += draft_->compute_us() - before;
    ++stats_.n_proposals;
    drafted.truncate((size_t) limit);
    if (!drafted.confidence_logits.empty()) {
        drafted.truncate(depth_by_confidence(drafted.confidence_logits, params_.confidence_min));
    }
    for (int32_t id : drafted.ids) {
        if (id < 0 || id >= target_.n_vocab()) {
            fail(DSPARK_ERROR_CALLBACK, format("the drafter proposed token %d, expected 0 to %d", id, target_.n_vocab() - 1));
        }
    }
    round_costs_.has_proposal = true;
    round_costs_.draft_s      = watch.seconds();
    if (round_is_auto_) {
        drafted.truncate((size_t) depth_->choose((int32_t) drafted.ids.size(), drafted.confidence_logits, n_tokens(), target_.n_rows(), round_is_drawn_));
    }
}

// Proposes behind the pending token and decodes both in one batch.
void session::start_round(llama_sampler * sampler, int32_t n_draft_max) {
    const int32_t pos    = n_tokens();
    const int32_t anchor = pending_;
    if (pos >= n_ctx_) {
        fail(DSPARK_ERROR_CONTEXT_FULL, format("the context of %d tokens is full", n_ctx_));
    }

    proposal      drafted;
    const int32_t limit = draft_limit(n_draft_max);
    round_is_auto_      = params_.auto_depth && depth_;
    round_costs_        = {};
    round_costs_.context = pos;
    if (limit > 0 && (!round_is_auto_ || depth_->wants_proposal(pos))) {
        if (!draft_does([&] { propose(sampler, limit, drafted); })) {
            drafted      = {};
            round_costs_ = {};
            round_costs_.context = pos;
        }
    }

    std::vector<int32_t> batch = {anchor};
    batch.insert(batch.end(), drafted.ids.begin(), drafted.ids.end());
    {
        stopwatch watch(stats_.t_verify_us);
        round_costs_.n_rows_before = target_.n_rows();
        decode(batch.data(), (int32_t) batch.size(), 0, round_features_);
        round_costs_.n_rows   = (int32_t) batch.size();
        round_costs_.target_s = watch.seconds();
    }
    tokens_.push_back(anchor);
    pending_          = -1;
    round_open_       = true;
    has_round_        = true;
    round_pos_        = pos;
    round_anchor_     = anchor;
    round_sampled_    = 0;
    round_            = verification(std::move(drafted.ids));
    round_confidence_ = std::move(drafted.confidence_logits);

    ++stats_.n_rounds;
    stats_.n_rounds_drafted += round_.n_drafted() > 0 ? 1 : 0;
    stats_.draft_n += round_.n_drafted();
    for (int32_t k = 0; k < std::min(round_.n_drafted(), 32); ++k) {
        ++stats_.n_drafted_at[k];
    }
}

// The token after those of the round so far, from the row of its distribution.
int32_t session::sample(llama_sampler * sampler) {
    const float * logits = target_.logits(logits_row_);
    if (!logits) {
        fail(DSPARK_ERROR_STATE, format("the target no longer has the logits of row %d: something else was decoded on its context", logits_row_));
    }
    if (!sampler) {
        return argmax(logits, target_.n_vocab());
    }
    const bool is_drafted = round_open_ && round_.n_accepted() < round_.n_drafted();
    return is_drafted && round_is_drawn_ && !match_reason_ ? sample_by_rejection(sampler, logits)
                                                           : dspark::sample(sampler, logits, target_.n_vocab(), candidates_);
}

// One application of the sampler's steps and one accept, as in dspark::sample().  If the draft does not stand the token is another one.
int32_t session::sample_by_rejection(llama_sampler * sampler, const float * logits) {
    sampler_chain chain(sampler, candidates_);
    int32_t       token = -1;
    if (chain.distribution_of(logits, target_.n_vocab(), p_)) {
        token = round_.drafted()[(size_t) round_.row()];
        draft_->drawn_from(round_.row(), q_);
        if (!stands(p_, q_, token, chain.uniform())) {
            take_residual(p_, q_);
            token = draw(p_, chain.uniform());
        }
        ++stats_.n_by_rejection;
    } else {
        token = chain.draw_as_plain();
    }
    chain.accept(token);
    return token;
}

int32_t session::next(llama_sampler * sampler, int32_t n_draft_max) {
    if (n_draft_max < -1) {
        fail(DSPARK_ERROR_ARGUMENT, format("n_draft_max is %d, expected -1 (the session's limit), 0 (none) or more", n_draft_max));
    }
    if (sampler) {
        require_steps(sampler);
    }
    require_untouched();
    match_reason_ = why_match(sampler);
    if (pending_ >= 0) {
        const bool is_drafted = round_open_ && round_.n_accepted() < round_.n_drafted();
        const bool stands     = is_drafted && round_.accept(pending_);
        if (is_drafted && round_is_auto_) {
            depth_->observe(stands ? round_.n_accepted() - 1 : round_.n_accepted(), round_confidence_, stands);
        }
        if (stands) {
            tokens_.push_back(pending_);
            pending_ = -1;
            ++stats_.draft_n_accepted;
            if (round_.n_accepted() <= 32) {
                ++stats_.n_accepted_at[round_.n_accepted() - 1];
            }
        } else {
            close_round(true);
            start_round(sampler, n_draft_max);
        }
        logits_row_ = round_.row();
    }
    if (logits_row_ < 0) {
        fail(DSPARK_ERROR_STATE, "there are no logits to choose from: append at least one token first");
    }

    stopwatch watch(stats_.t_sample_us);
    pending_ = sample(sampler);
    round_sampled_ += round_open_ ? 1 : 0;
    ++stats_.n_emitted;
    return pending_;
}

void session::rewind(int32_t n_tokens_kept) {
    if (n_tokens_kept < 0 || n_tokens_kept > n_tokens()) {
        fail(DSPARK_ERROR_ARGUMENT, format("cannot rewind to %d tokens, expected 0 to %d", n_tokens_kept, n_tokens()));
    }
    close_round();
    forget_round();
    tokens_.resize((size_t) n_tokens_kept);
    remove_target_tail();
    if (tokens_.empty()) {
        target_.set_exact(true);
    }
    forget_owed(std::min(n_owed_, n_draft_past() - n_tokens_kept));
    if (draft_ && draft_->n_past() >= n_tokens_kept) {
        draft_failure_ = nullptr;
    }
    if (draft_ && draft_->n_past() > n_tokens_kept) {
        draft_->rewind(n_tokens_kept);
    }
}

void session::forget_round() {
    pending_    = -1;
    logits_row_ = -1;
    round_open_ = false;
    has_round_  = false;
    tail_stale_ = false;
}

// Whatever was done to the target, only its positions can be asked for; the tokens are the caller's word.
void session::adopt(const int32_t * tokens, int32_t n) {
    if (n < 0 || n > n_ctx_) {
        fail(DSPARK_ERROR_ARGUMENT, format("cannot adopt %d tokens, expected 0 to %d", n, n_ctx_));
    }
    target_.require_tokens(tokens, n);
    const int32_t last = target_.last_position();
    if (last < n - 1) {
        fail(DSPARK_ERROR_STATE, format("the target's memory ends at position %d, expected %d tokens in it", last, n));
    }
    target_.forget_batch();
    const bool is_prefix = n <= n_tokens() && std::equal(tokens, tokens + n, tokens_.begin());
    if (is_prefix) {
        rewind(n);
        return;
    }
    forget_round();
    forget_owed(n_owed_);
    tokens_.assign(tokens, tokens + n);
    remove_target_tail();
    target_.set_exact(n == 0); // whoever decoded them
    if (draft_) {
        draft_->restart(n);
        draft_failure_ = nullptr;
    }
}

// A number that differs for other targets: a state is of no use to them.
static uint64_t target_fingerprint(const llama_model * model) {
    fnv1a             hash;
    const std::string architecture = model_architecture(model);
    char              name[256]    = "";
    llama_model_meta_val_str(model, "general.name", name, sizeof(name));
    hash.add(architecture.data(), architecture.size());
    hash.add(name, std::strlen(name));
    for (int32_t value : {llama_model_n_embd(model), llama_model_n_layer(model), llama_vocab_n_tokens(llama_model_get_vocab(model))}) {
        hash.add(value);
    }
    hash.add(llama_model_size(model)); // differs between quantisations
    return hash.value();
}

// target, drafter (0: without its part), number of tokens, whether they are exact, tokens; then the drafter's part.
std::vector<uint8_t> session::save() {
    settle();
    draft_does([&] { pay_drafter(); });
    // a drafter that is paused or never used has nothing to add
    const bool      with_draft = !disabled_reason_ && draft_->fingerprint() != 0 && draft_->n_past() == n_tokens();
    snapshot_writer to;
    to.put(target_fingerprint(target_.model()));
    to.put(with_draft ? draft_->fingerprint() : (uint64_t) 0);
    to.put(n_tokens());
    to.put((int32_t) target_.is_exact());
    to.put(tokens_.data(), tokens_.size() * sizeof(int32_t));
    if (with_draft) {
        draft_->save(to);
    }
    return to.finish();
}

void session::load(const uint8_t * data, size_t n_bytes) {
    snapshot_reader from(data, n_bytes);
    const uint64_t  of_target = from.get<uint64_t>();
    const uint64_t  of_draft  = from.get<uint64_t>();
    const int32_t   n         = from.get<int32_t>();
    const bool      is_exact  = from.get<int32_t>() != 0;
    if (of_target != target_fingerprint(target_.model())) {
        fail(DSPARK_ERROR_MISMATCH, "the saved state was made with another target");
    }
    if (n < 0 || n > n_ctx_) {
        fail(DSPARK_ERROR_CONTEXT_FULL, format("the saved state has %d tokens, this session holds up to %d", n, n_ctx_));
    }
    const uint8_t *      ids = from.take((size_t) n * sizeof(int32_t));
    std::vector<int32_t> tokens((size_t) n);
    if (n > 0) { // an empty vector has no pointer
        std::memcpy(tokens.data(), ids, tokens.size() * sizeof(int32_t));
    }
    target_.require_tokens(tokens.data(), n);
    const int32_t last = target_.last_position();
    if (last != n - 1) {
        fail(DSPARK_ERROR_STATE, format("the target's memory ends at position %d, expected the saved state's %d; restore it first", last, n - 1));
    }
    if (!disabled_reason_) {
        if (of_draft == 0) {
            from.require_end();
            draft_->restart(n);
        } else if (of_draft != draft_->fingerprint()) {
            fail(DSPARK_ERROR_MISMATCH, "the saved state was made with another draft");
        } else {
            draft_->load(from, n);
        }
        draft_failure_ = nullptr;
    }
    target_.forget_batch();
    target_.set_exact(is_exact);
    forget_round();
    is_lost_ = false;
    forget_owed(n_owed_);
    tokens_.assign(tokens.begin(), tokens.end());
}

session::round_view session::last_round() const {
    if (!has_round_) {
        fail(DSPARK_ERROR_STATE, "no round has been run yet");
    }
    return {round_pos_, round_anchor_, round_sampled_, round_, round_confidence_};
}

} // namespace dspark
