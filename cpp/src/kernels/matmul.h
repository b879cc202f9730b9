// MUL_MAT with one order of additions for every output element, whatever the number of columns and of threads.
#pragma once

#include "ggml_cpu_private.h"

namespace dspark::kernels {

// Whether matmul_compute() can do op, a MUL_MAT.  Depends on nothing but types, shapes, strides and src0's buffer.
bool matmul_supported(const ggml_tensor * op);

size_t matmul_work_size(int n_threads, const ggml_tensor * op);

// Called by every thread of the pool, op as accepted above.
void matmul_compute(const ggml_compute_params & params, ggml_tensor * op);

} // namespace dspark::kernels
