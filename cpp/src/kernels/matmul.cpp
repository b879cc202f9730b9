#include "matmul.h"

namespace dspark::kernels {

bool matmul_supported(const ggml_tensor *) { return false; }

size_t matmul_work_size(int, const ggml_tensor *) { return 0; }

void matmul_compute(const ggml_compute_params &, ggml_tensor *) {}

} // namespace dspark::kernels
