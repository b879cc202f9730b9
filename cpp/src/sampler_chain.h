// A caller's llama_sampler: llama_sampler_sample() without its ends of the process, and what rejection sampling needs, the distribution that the
// sampler makes of logits and the draw from that.
//
// In a chain whose last step is llama.cpp's "dist" the steps before it, whatever they are, leave a distribution, and dist draws from it.  So
// the steps are applied once a token and told the token that came out, as llama_sampler_sample() does, and random numbers are dist's own: a
// seed, a reset and a copy of the chain mean what they mean without a draft.
#pragma once

#include "llama_binding.h"
#include "verify.h"

namespace dspark {

// Throws DSPARK_ERROR_ARGUMENT if a step of the chain is NULL, which is what llama.cpp makes of a malformed grammar.
void require_steps(llama_sampler * sampler);

// llama_sampler_sample() of a row's logits [n_vocab], for a sampler with all its steps.  Throws DSPARK_ERROR_STATE, with nothing accepted, where
// llama.cpp would end the process: nothing was chosen, or what the grammar forbids.  buffer is scratch that the caller keeps.
int32_t sample(llama_sampler * sampler, const float * logits, int32_t n_vocab, std::vector<llama_token_data> & buffer);

class sampler_chain {
  public:
    // Null, or why the sampler's distribution cannot be had (static text).
    static const char * opaque_reason(llama_sampler * sampler);

    // Of a sampler without such a reason; buffer is scratch that the caller keeps from token to token.
    sampler_chain(llama_sampler * sampler, std::vector<llama_token_data> & buffer);

    // What the steps leave of logits [n_vocab].  False if that is no distribution (NaN, or nothing left): draw_as_plain() then
    // does with it what llama.cpp does.
    bool    distribution_of(const float * logits, int32_t n_vocab, distribution & out);
    int32_t draw_as_plain();

    // Of the chain's own draw.
    uint32_t random_bits();
    double   uniform() { return random_bits() / 4294967296.0; } // [0, 1)

    // Tells every step which token came out.  Throws as sample() does.
    void accept(int32_t token);

    // The steps that only look at the logits before them (temperature, top-k, top-p, min-p, typical), by which a draft can shape
    // its own distributions.
    void list_shaping_steps(std::vector<llama_sampler *> & out) const;

  private:
    llama_sampler *                 chain_;
    llama_sampler *                 dist_;
    std::vector<llama_token_data> & buffer_;
    llama_token_data_array          left_ = {}; // of the buffer, after the steps
};

// Logits to probabilities, in place: false if they have no finite sum.
bool softmax(llama_token_data_array & tokens);

} // namespace dspark
