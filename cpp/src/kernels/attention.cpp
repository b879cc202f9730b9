#include "attention.h"

namespace dspark::kernels {

bool attention_supported(const ggml_tensor *) { return false; }

size_t attention_work_size(int, const ggml_tensor *) { return 0; }

void attention_compute(const ggml_compute_params &, ggml_tensor *) {}

} // namespace dspark::kernels
