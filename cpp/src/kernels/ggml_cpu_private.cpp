#include "ggml_cpu_private.h"

namespace dspark::kernels {

private_functions ggml_private;

const char * bind_private_functions() {
    const char * missing = nullptr;
    const auto   find    = [&missing](auto & function, const char * name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(find_bound_symbol(name));
        missing  = function ? missing : name;
    };
    find(ggml_private.extra_buffer_types, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
    find(ggml_private.barrier, "ggml_barrier");
    find(ggml_private.chunk_set, "ggml_threadpool_chunk_set");
    find(ggml_private.chunk_add, "ggml_threadpool_chunk_add");
    find(ggml_private.buffer_init, "ggml_backend_buffer_init");
    return missing;
}

} // namespace dspark::kernels
