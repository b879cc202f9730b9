#include "packed_buffer.h"

#include <atomic>

namespace dspark::kernels {

namespace {

ggml_backend_buffer_type type{};

std::atomic<size_t> n_bytes{0};

} // namespace

ggml_backend_buffer_type_t packed_buffer_type(extra_buffer_type * extra) {
    type.iface.get_name      = [](ggml_backend_buffer_type_t) { return "CPU_DSPARK"; };
    type.iface.alloc_buffer  = [](ggml_backend_buffer_type_t, size_t) -> ggml_backend_buffer_t { return nullptr; };
    type.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 64; };
    type.device              = find_device(nullptr);
    type.context             = extra;
    return &type;
}

bool is_packed(const ggml_tensor * tensor) { return tensor->buffer && ggml_backend_buffer_get_type(tensor->buffer) == &type; }

bool packable(const ggml_tensor *) { return false; }

size_t packed_bytes() { return n_bytes; }

} // namespace dspark::kernels
