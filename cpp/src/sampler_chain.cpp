#include "sampler_chain.h"

#include "error.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <new>

namespace dspark {

namespace {

// llama_sampler_name() does not look whether there is one, and a sampler of the host's may have none.
bool is_named(llama_sampler * sampler, const char * name) {
    return sampler->iface && sampler->iface->name && std::strcmp(sampler->iface->name(sampler), name) == 0;
}

// Grammars throw where they come to no state.
template <typename F> void does(F && step) {
    try {
        step();
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & e) {
        fail(DSPARK_ERROR_STATE, format("the sampler has failed: %s", e.what()));
    }
}

void apply(llama_sampler * step, llama_token_data_array & tokens) {
    if (step->iface && step->iface->apply) {
        does([&] { llama_sampler_apply(step, &tokens); });
    }
}

bool is_chain(llama_sampler * sampler) {
    return llama_sampler_chain_get(sampler, -1) != nullptr;
}

template <typename F> void for_each_step(llama_sampler * sampler, F && visit) {
    if (!is_chain(sampler)) {
        visit(sampler);
        return;
    }
    for (int32_t i = 0; i < llama_sampler_chain_n(sampler); ++i) {
        llama_sampler * step = llama_sampler_chain_get(sampler, i);
        if (!step) {
            fail(DSPARK_ERROR_ARGUMENT, format("step %d of the sampler chain is NULL: llama.cpp could not make it (of a malformed grammar, say)", i));
        }
        for_each_step(step, visit);
    }
}

llama_token_data_array all_tokens(const float * logits, int32_t n_vocab, std::vector<llama_token_data> & buffer) {
    buffer.resize((size_t) n_vocab);
    for (int32_t id = 0; id < n_vocab; ++id) {
        buffer[(size_t) id] = {id, logits[id], 0.0f};
    }
    return {buffer.data(), buffer.size(), -1, false};
}

int32_t chosen(const llama_token_data_array & left) {
    if (left.selected < 0 || left.selected >= (int64_t) left.size) {
        fail(DSPARK_ERROR_STATE, "the sampler has left no token to choose from");
    }
    return left.data[left.selected].id;
}

// A grammar ends the process when it is told a token that it forbids, and such a one comes out where other steps, those of logits processors
// mostly, forbid all others.
void accept(llama_sampler * sampler, int32_t token) {
    for_each_step(sampler, [&](llama_sampler * step) {
        if (is_named(step, "grammar")) {
            llama_token_data       only  = {token, 0.0f, 0.0f};
            llama_token_data_array array = {&only, 1, -1, false};
            apply(step, array);
            if (array.size < 1 || only.logit == -INFINITY) {
                fail(DSPARK_ERROR_STATE, "no token is left to choose from: what the grammar allows, logits processors or other steps of the sampler forbid");
            }
        }
    });
    does([&] { llama_sampler_accept(sampler, token); });
}

} // namespace

void require_steps(llama_sampler * sampler) {
    for_each_step(sampler, [](llama_sampler *) {});
}

int32_t sample(llama_sampler * sampler, const float * logits, int32_t n_vocab, std::vector<llama_token_data> & buffer) {
    llama_token_data_array left = all_tokens(logits, n_vocab, buffer);
    apply(sampler, left);
    const int32_t token = chosen(left);
    accept(sampler, token);
    return token;
}

const char * sampler_chain::opaque_reason(llama_sampler * sampler) {
    if (!sampler) {
        return "decoding is greedy: there is nothing to draw";
    }
    const int32_t n = is_chain(sampler) ? llama_sampler_chain_n(sampler) : 0;
    if (n < 1 || !is_named(llama_sampler_chain_get(sampler, n - 1), "dist")) {
        return "the sampler does not end with a draw from a distribution (greedy, mirostat and others choose themselves)";
    }
    return nullptr;
}

sampler_chain::sampler_chain(llama_sampler * sampler, std::vector<llama_token_data> & buffer)
    : chain_(sampler), dist_(llama_sampler_chain_get(sampler, llama_sampler_chain_n(sampler) - 1)), buffer_(buffer) {}

bool sampler_chain::distribution_of(const float * logits, int32_t n_vocab, distribution & out) {
    left_ = all_tokens(logits, n_vocab, buffer_);
    for (int32_t i = 0; i < llama_sampler_chain_n(chain_) - 1; ++i) {
        apply(llama_sampler_chain_get(chain_, i), left_);
    }
    if (!softmax(left_)) {
        return false;
    }
    out.resize(left_.size);
    for (size_t i = 0; i < left_.size; ++i) {
        out[i] = {left_.data[i].id, left_.data[i].p};
    }
    const auto by_id = [](const token_prob & a, const token_prob & b) { return a.id < b.id; };
    if (!std::is_sorted(out.begin(), out.end(), by_id)) {
        std::sort(out.begin(), out.end(), by_id);
    }
    return true;
}

int32_t sampler_chain::draw_as_plain() {
    apply(dist_, left_);
    return chosen(left_);
}

void sampler_chain::accept(int32_t token) {
    dspark::accept(chain_, token);
}

uint32_t sampler_chain::random_bits() {
    // one of 256 equally likely tokens is eight bits
    constexpr size_t n_tokens = 256;
    uint32_t         bits     = 0;
    for (int i = 0; i < 4; ++i) {
        llama_token_data tokens[n_tokens];
        for (size_t t = 0; t < n_tokens; ++t) {
            tokens[t] = {(llama_token) t, 0.0f, 0.0f};
        }
        llama_token_data_array array = {tokens, n_tokens, -1, true};
        apply(dist_, array);
        bits = bits << 8 | (uint32_t) (array.selected & 255);
    }
    return bits;
}

void sampler_chain::list_shaping_steps(std::vector<llama_sampler *> & out) const {
    out.clear();
    for (int32_t i = 0; i < llama_sampler_chain_n(chain_) - 1; ++i) {
        llama_sampler * step = llama_sampler_chain_get(chain_, i);
        for (const char * name : {"temp", "temp-ext", "top-k", "top-p", "min-p", "typical"}) {
            if (is_named(step, name)) {
                out.push_back(step);
            }
        }
    }
}

bool softmax(llama_token_data_array & tokens) {
    float top = -INFINITY;
    for (size_t i = 0; i < tokens.size; ++i) {
        top = std::max(top, tokens.data[i].logit);
    }
    double sum = 0;
    for (size_t i = 0; i < tokens.size; ++i) {
        tokens.data[i].p = std::exp(tokens.data[i].logit - top);
        sum += (double) tokens.data[i].p;
    }
    if (!(sum > 0) || !std::isfinite(sum)) {
        return false;
    }
    const float scale = (float) (1 / sum);
    for (size_t i = 0; i < tokens.size; ++i) {
        tokens.data[i].p *= scale;
    }
    return true;
}

} // namespace dspark
