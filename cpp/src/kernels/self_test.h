// Whether the hook and every kernel do what they should in this process: asked once, before anything relies on them.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

// Runs each kernel on random data in a graph of ggml's CPU device, two threads, and compares with what ggml's own conversions
// of the weights give.  Returns what is wrong in a sentence, or ""; n_products is how many products the graph had.
std::string self_test(ggml_backend_buffer_type_t packed, int & n_products);

// The same for attention, against doubles: three queries and then the last of them alone, two operations in all.
std::string self_test_attention();

} // namespace dspark::kernels
