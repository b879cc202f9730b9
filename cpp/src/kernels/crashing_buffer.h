// Whether ggml's own kernels for a buffer type run on this machine at all.
//
// Those of AMX do not in many builds: GCC before 11.5, 12.4 and 13.3 (its bug 114098) takes the settings of the tiles, which are
// on the stack, for unused, and the first product ends the process.
#pragma once

#include "../llama_binding.h"

namespace dspark::kernels {

// Tries one product of Q8_0 weights, in a child process.  True if that ended by a signal of a fault, or the product is wrong.
// False too where there is no way to try it.
bool crashes(ggml_backend_buffer_type_t type);

} // namespace dspark::kernels
