// The buffer type that keeps quantised weights in the layout of our kernels, once: packed when they are set.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

// The buffer type, with extra as its context.  One object for the life of the process.
ggml_backend_buffer_type_t packed_buffer_type(extra_buffer_type * extra);

// Whether the tensor lies in a buffer of the type.
bool is_packed(const ggml_tensor * tensor);

// Whether weights of this type and shape have a packed layout.
bool packable(const ggml_tensor * tensor);

// Bytes of all living packed buffers.
size_t packed_bytes();

// Bytes that can be taken without swapping, as far as the system says; all of them where it does not.
uint64_t memory_available();

} // namespace dspark::kernels
