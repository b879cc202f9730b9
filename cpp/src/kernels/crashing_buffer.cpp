#include "crashing_buffer.h"

#if defined(__linux__)

#    include <cerrno>
#    include <cmath>
#    include <csignal>
#    include <vector>

#    include <sys/resource.h>
#    include <sys/wait.h>
#    include <unistd.h>

namespace dspark::kernels {

namespace {

// rows in the groups that AMX wants; several columns, as one alone goes another way there
constexpr int64_t n_k = 256, n_rows = 64, n_cols = 5;

constexpr int faults[] = {SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGABRT};

// Weights of 1 and columns of 0, 1, 2, ...: nothing is lost by rounding to 8 bits.
bool product_is_right(ggml_backend_buffer_type_t type) {
    ggml_context_ptr weights = new_meta_context(1), ops = new_meta_context(4, 4);
    ggml_tensor *    w     = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q8_0, n_k, n_rows);
    ggml_tensor *    x     = ggml_new_tensor_2d(ops.get(), GGML_TYPE_F32, n_k, n_cols);
    ggml_tensor *    y     = ggml_mul_mat(ops.get(), w, x);
    ggml_cgraph *    graph = ggml_new_graph_custom(ops.get(), 4, false);
    ggml_set_input(x);
    ggml_set_output(y);
    ggml_build_forward_expand(graph, y);

    buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), type));
    if (!buffer) {
        return true;
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::vector<float> values((size_t) (n_k * n_rows), 1.0f);
    std::vector<char>  rows(ggml_nbytes(w));
    ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), rows.data(), 0, n_rows, n_k, nullptr);
    ggml_backend_tensor_set(w, rows.data(), 0, rows.size());

    backend_ptr    backend = new_backend(find_device(nullptr), 1);
    ggml_backend_t raw     = backend.get();
    sched_ptr      sched(ggml_backend_sched_new(&raw, nullptr, 1, 8, false, false));
    if (!sched || !ggml_backend_sched_alloc_graph(sched.get(), graph)) {
        return true;
    }
    values.resize((size_t) (n_k * n_cols));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = (float) (i / (size_t) n_k);
    }
    ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
    if (ggml_backend_sched_graph_compute(sched.get(), graph) != GGML_STATUS_SUCCESS) {
        return true;
    }
    values.resize((size_t) (n_rows * n_cols));
    ggml_backend_tensor_get(y, values.data(), 0, values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
        const float wanted = (float) (n_k * (int64_t) (i / (size_t) n_rows));
        if (!(std::fabs(values[i] - wanted) <= 0.01f * wanted)) {
            return false;
        }
    }
    return true;
}

} // namespace

bool crashes(ggml_backend_buffer_type_t type) {
    const pid_t child = fork();
    if (child < 0) {
        return false;
    }
    if (child == 0) {
        for (int fault : faults) {
            signal(fault, SIG_DFL); // the host's handlers would report a crash of its own
        }
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGALRM, SIG_DFL);
        alarm(5); // a lock that another thread held at the fork is never released here
        bool right = true;
        try {
            right = product_is_right(type);
        } catch (...) { // nothing is known then
        }
        _exit(right ? 0 : 1);
    }
    int   status = 0;
    pid_t ended;
    do {
        ended = waitpid(child, &status, 0);
    } while (ended < 0 && errno == EINTR);
    if (ended != child) { // the host collects its children itself
        return false;
    }
    if (WIFSIGNALED(status)) {
        for (int fault : faults) {
            if (WTERMSIG(status) == fault) {
                return true;
            }
        }
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

} // namespace dspark::kernels

#else

namespace dspark::kernels {

bool crashes(ggml_backend_buffer_type_t) { return false; }

} // namespace dspark::kernels

#endif
