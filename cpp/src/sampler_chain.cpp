#include "sampler_chain.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace dspark {

namespace {

// llama_sampler_name() does not look whether there is one, and a sampler of the host's may have none.
bool is_named(llama_sampler * sampler, const char * name) {
    return sampler->iface && sampler->iface->name && std::strcmp(sampler->iface->name(sampler), name) == 0;
}

void apply(llama_sampler * step, llama_token_data_array & tokens) {
    if (step->iface && step->iface->apply) {
        llama_sampler_apply(step, &tokens);
    }
}

} // namespace

const char * sampler_chain::opaque_reason(llama_sampler * sampler) {
    if (!sampler) {
        return "decoding is greedy: there is nothing to draw";
    }
    const int32_t n = llama_sampler_chain_get(sampler, -1) ? llama_sampler_chain_n(sampler) : 0;
    if (n < 1 || !is_named(llama_sampler_chain_get(sampler, n - 1), "dist")) {
        return "the sampler does not end with a draw from a distribution (greedy, mirostat and others choose themselves)";
    }
    return nullptr;
}

sampler_chain::sampler_chain(llama_sampler * sampler, std::vector<llama_token_data> & buffer)
    : chain_(sampler), dist_(llama_sampler_chain_get(sampler, llama_sampler_chain_n(sampler) - 1)), buffer_(buffer) {}

bool sampler_chain::distribution_of(const float * logits, int32_t n_vocab, distribution & out) {
    buffer_.resize((size_t) n_vocab);
    for (int32_t id = 0; id < n_vocab; ++id) {
        buffer_[(size_t) id] = {id, logits[id], 0.0f};
    }
    left_ = {buffer_.data(), buffer_.size(), -1, false};
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
    if (left_.selected < 0 || left_.selected >= (int64_t) left_.size) {
        fail(DSPARK_ERROR_STATE, "the sampler has left no token to choose from");
    }
    return left_.data[left_.selected].id;
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
