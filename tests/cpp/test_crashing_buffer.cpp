// llama.cpp's kernels that crash are found in a child process, and the host, its handlers and its children stay as they were.
#include "kernels/crashing_buffer.h"
#include "kernels/ggml_cpu_private.h"
#include "test.h"
#include "toy.h"

#include <csignal>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

using dspark::find_device;
namespace kernels = dspark::kernels;

static ggml_backend_buffer_t fault(ggml_backend_buffer_type_t, size_t) {
    raise(SIGSEGV);
    return nullptr;
}

static ggml_backend_buffer_t trap(ggml_backend_buffer_type_t, size_t) {
    raise(SIGTERM); // no fault of the code's
    return nullptr;
}

static ggml_backend_buffer_t refuse(ggml_backend_buffer_type_t, size_t) { return nullptr; }

// Weights that are stored as something else: the product is computed, and wrong.
static ggml_backend_buffer_type_t plain = nullptr;
static void                       spoil(ggml_backend_buffer_t, ggml_tensor * tensor, const void *, size_t, size_t size) {
    memset(tensor->data, 0, size);
}
static ggml_backend_buffer_t spoiled(ggml_backend_buffer_type_t, size_t size) {
    ggml_backend_buffer_t buffer = dspark::ggml_backend_buft_alloc_buffer(plain, size);
    buffer->iface.set_tensor     = spoil;
    return buffer;
}

static void hosts_handler(int) { _exit(99); }

int main() {
    toy::bind();
    plain = dspark::ggml_backend_dev_buffer_type(find_device(nullptr));
    ASSERT(!kernels::crashes(plain));

    // a host that handles faults itself, as Python's faulthandler does, is not asked
    signal(SIGSEGV, hosts_handler);
    const auto with = [](ggml_backend_buffer_t (*alloc)(ggml_backend_buffer_type_t, size_t)) {
        ggml_backend_buffer_type type = *plain;
        type.iface.alloc_buffer       = alloc;
        return kernels::crashes(&type);
    };
    ASSERT(with(fault));
    ASSERT(with(spoiled));
    ASSERT(!with(refuse));
    ASSERT(!with(trap));
    ASSERT(signal(SIGSEGV, SIG_DFL) == hosts_handler);
    ASSERT(waitpid(-1, nullptr, WNOHANG) < 0); // no child is left

    // a host that lets the kernel collect its children learns nothing, and is not kept waiting
    signal(SIGCHLD, SIG_IGN);
    ASSERT(!with(fault));
    return 0;
}
