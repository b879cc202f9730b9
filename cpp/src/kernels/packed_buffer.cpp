#include "packed_buffer.h"

#include "isa.h"
#include "packed_layout.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#if defined(__linux__)
#    include <sys/mman.h>
#endif

namespace dspark::kernels {

namespace {

ggml_backend_buffer_type type{};

std::atomic<size_t> n_bytes{0};

// Large pages, where the system has them: a decode reads every weight once, and each page's address would be looked up.
constexpr size_t large_page = 2 << 20;

void * allocate(size_t size) {
#if defined(_WIN32)
    return _aligned_malloc(size, 64);
#else
    void * p = nullptr;
    if (posix_memalign(&p, size >= large_page ? large_page : 64, size) != 0) {
        return nullptr;
    }
#    if defined(__linux__)
    if (size >= large_page) {
        madvise(p, size, MADV_HUGEPAGE);
    }
#    endif
    return p;
#endif
}

void release(void * p) {
#if defined(_WIN32)
    _aligned_free(p);
#else
    free(p);
#endif
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * t) {
    return packable(t) ? packed_size(t->type, kernels_of_this_machine()->tile_rows, t->ne[0], t->ne[1]) : ggml_nbytes(t);
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    const kernel_table & k = *kernels_of_this_machine();
    if (offset == 0 && size == ggml_nbytes(t)) {
        pack(t->type, k.tile_rows, k.q8_bias, t->ne[0], t->ne[1], data, t->data);
        return;
    }
    std::vector<char> rows(ggml_nbytes(t));
    unpack(t->type, k.tile_rows, k.q8_bias, t->ne[0], t->ne[1], t->data, rows.data());
    memcpy(rows.data() + offset, data, size);
    pack(t->type, k.tile_rows, k.q8_bias, t->ne[0], t->ne[1], rows.data(), t->data);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    const kernel_table & k = *kernels_of_this_machine();
    std::vector<char>    rows(ggml_nbytes(t));
    unpack(t->type, k.tile_rows, k.q8_bias, t->ne[0], t->ne[1], t->data, rows.data());
    memcpy(data, rows.data() + offset, size);
}

void memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor * t, uint8_t value, size_t offset, size_t size) {
    const std::vector<char> same(size, (char) value);
    set_tensor(buffer, t, same.data(), offset, size);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    void * memory = allocate(size);
    if (!memory) {
        return nullptr;
    }
    ggml_backend_buffer_i iface{};
    iface.free_buffer = [](ggml_backend_buffer_t b) {
        n_bytes -= b->size;
        release(b->context);
    };
    iface.get_base      = [](ggml_backend_buffer_t b) { return b->context; };
    iface.memset_tensor = memset_tensor;
    iface.set_tensor    = set_tensor;
    iface.get_tensor    = get_tensor;
    iface.clear         = [](ggml_backend_buffer_t b, uint8_t value) { memset(b->context, value, b->size); };
    ggml_backend_buffer_t buffer = ggml_private.buffer_init(buft, iface, memory, size);
    n_bytes += size;
    return buffer;
}

} // namespace

ggml_backend_buffer_type_t packed_buffer_type(extra_buffer_type * extra) {
    type.iface.get_name       = [](ggml_backend_buffer_type_t) { return "CPU_DSPARK"; };
    type.iface.alloc_buffer   = alloc_buffer;
    type.iface.get_alignment  = [](ggml_backend_buffer_type_t) -> size_t { return 64; };
    type.iface.get_alloc_size = alloc_size;
    type.device               = find_device(nullptr);
    type.context              = extra;
    return &type;
}

bool is_packed(const ggml_tensor * t) { return t->buffer && ggml_backend_buffer_get_type(t->buffer) == &type; }

bool packable(const ggml_tensor * t) {
    const packed_format f = format_of(t->type);
    return f.bits != 0 && kernels_of_this_machine()->find(t->type) && t->ne[2] == 1 && t->ne[3] == 1 && t->ne[0] % (32 * f.n_groups) == 0 &&
           t->nb[0] == ggml_type_size(t->type) && t->nb[1] == ggml_row_size(t->type, t->ne[0]) && !t->view_src;
}

size_t packed_bytes() { return n_bytes; }

uint64_t memory_available() {
    std::ifstream meminfo("/proc/meminfo");
    for (std::string key; meminfo >> key;) {
        uint64_t kilobytes = 0;
        if (key == "MemAvailable:" && meminfo >> kilobytes) {
            return kilobytes << 10;
        }
    }
    return UINT64_MAX;
}

} // namespace dspark::kernels
