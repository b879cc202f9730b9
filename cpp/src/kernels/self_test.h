// Whether the hook and every kernel do what they should in this process: asked once, before anything relies on them.
#pragma once

#include <string>

namespace dspark::kernels {

// Runs each kernel on random data through a real graph and compares with what ggml's own conversions give.  Returns
// what is wrong in a sentence, or "".
std::string self_test();

} // namespace dspark::kernels
