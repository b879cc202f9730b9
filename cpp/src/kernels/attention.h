// FLASH_ATTN_EXT for few queries: K and V rows are read once for all of them.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

// Whether attention_compute() can do op, a FLASH_ATTN_EXT.  Depends on nothing but types, shapes and strides.
bool attention_supported(const ggml_tensor * op);

// Bytes of work buffer that attention_compute() needs with up to n_threads threads.
size_t attention_work_size(int n_threads, const ggml_tensor * op);

// Called by every thread of the pool, op as accepted above; params.wdata has at least the bytes asked for, aligned to
// 16 bytes.  ggml puts a barrier between operations, so none is needed at the end.
void attention_compute(const ggml_compute_params & params, ggml_tensor * op);

} // namespace dspark::kernels
