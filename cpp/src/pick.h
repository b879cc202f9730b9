// How the chain of a proposal picks its tokens: the likeliest ones, or drawn from the draft's distributions.
#pragma once

#include "llama_binding.h"

#include <vector>

namespace dspark {

// Rows of the head that a token is drawn from: the likeliest so many.  A draft's tail is hardly ever accepted, and a
// draft may have any distribution as long as it is the one that it was drawn from.
constexpr size_t n_pick_rows = 256;

// One for each drafted slot.  Graphs hold its address: what is set here holds for the next computation, and what is drawn is left here.
struct slot_pick {
    const std::vector<llama_sampler *> * steps = nullptr; // null: the likeliest; else what shapes the distribution before the draw
    double                               u     = 0;       // in [0, 1)
    std::vector<llama_token_data>        rows;            // draft rows and probabilities, of a draw
};

// The picked row of logits [Vd, n], for n slots: [n] i32.  pick null: by ggml's own argmax, the last on ties, for devices
// without custom operations; else by one of the CPU.
ggml_tensor * build_pick_rows(ggml_context * ctx, ggml_tensor * logits, slot_pick * pick);

} // namespace dspark
