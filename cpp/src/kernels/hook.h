// Puts our kernels in front of ggml-cpu's own, inside its thread pool: an extra buffer type is asked before each operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dspark::kernels {

enum class mode { automatic, on, off };

struct state {
    bool         active        = false; // plain weights, attention and packed weights are computed here
    bool         packs_weights = false; // models loaded from now on keep quantised weights in our layout
    std::string  reason;                // why not active, or what is missing; "" if nothing is
    const char * isa           = "";    // "avx512", ..., "" before the first install
    int64_t      n_matmul      = 0;     // operations computed here so far
    int64_t      n_attention   = 0;
    size_t       n_bytes       = 0;     // of weights in our layout, in all living models
    const char * removed       = "";    // "AMX" if llama.cpp's kernels for it crash on this machine
};

// Puts our buffer type, idle, into ggml-cpu's list, if that can be done, and takes out what crashes.  bind() does so: ggml reads the
// list while it computes and copies it when the first model is loaded, so that later would be dangerous and too late.
void enter();

// Installs the kernels, after a self-test, or switches them off again; weights that are packed stay so and are
// computed here whatever the mode.  Must not run beside a graph's computation on the CPU.
// automatic: leaves the reason in the state where they cannot run, or where less memory is available than the n_bytes of the
// model to be loaded next; on: throws the first, ignores the second.
void install(mode wanted, uint64_t n_bytes);

state get_state();

// For telling whether a graph was computed with row independence: whether the kernels are active, and how many products and
// attentions were left to ggml's kernels since they were installed.
bool    is_active();
int64_t declined();

} // namespace dspark::kernels
