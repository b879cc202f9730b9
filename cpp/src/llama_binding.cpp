#include "llama_binding.h"

#include "kernels/hook.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#if defined(_WIN32)
#    define WIN32_LEAN_AND_MEAN
#    include <windows.h>
#else
#    include <dlfcn.h>
#endif

namespace dspark {

#define DSPARK_DEFINE(name) decltype(&::name) name = nullptr;
DSPARK_BOUND_FUNCTIONS(DSPARK_DEFINE)
#undef DSPARK_DEFINE

void (*llama_set_embeddings_layer_inp)(llama_context *, uint32_t, bool)              = nullptr;
float * (*llama_get_embeddings_layer_inp)(llama_context *, uint32_t)                 = nullptr;
const ggml_tensor * (*llama_model_get_tensor)(const llama_model *, const char *)     = nullptr;

namespace {

std::mutex          bind_mutex;
bool                bound = false;
std::vector<void *> bound_libraries;

void * find_symbol(void * const * libraries, size_t n_libraries, const char * name) {
    for (size_t i = 0; i < n_libraries; ++i) {
#if defined(_WIN32)
        void * symbol = reinterpret_cast<void *>(GetProcAddress(static_cast<HMODULE>(libraries[i]), name));
#else
        void * symbol = dlsym(libraries[i], name);
#endif
        if (symbol) {
            return symbol;
        }
    }
    return nullptr;
}

// The functions of llama-ext.h have C++ linkage, so their exported name depends on the compiler; the plain name comes
// first, for a libllama that makes them part of its C API.
template <typename F> void find_extension(void * const * libraries, size_t n, F & out, std::initializer_list<const char *> names) {
    for (const char * name : names) {
        if (void * symbol = find_symbol(libraries, n, name)) {
            out = reinterpret_cast<F>(symbol);
            return;
        }
    }
}

// (1,2;3,4) x (5,6) + (7,8) = (24, 47): proves that the headers we were compiled with describe this ggml.
void check_three_op_graph() {
    ggml_context_ptr ctx = new_meta_context(8, 8);
    ggml_tensor *    a   = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 2, 2);
    ggml_tensor *    x   = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 2);
    ggml_tensor *    b   = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 2);
    ggml_tensor *    y   = ggml_scale(ctx.get(), ggml_add(ctx.get(), ggml_mul_mat(ctx.get(), a, x), b), 2.0f);
    ggml_set_input(a);
    ggml_set_input(x);
    ggml_set_input(b);
    ggml_set_output(y);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 8, false);
    ggml_build_forward_expand(graph, y);

    backend_ptr            backend  = new_backend(find_device(nullptr), 1);
    ggml_backend_t         raw      = backend.get();
    sched_ptr              sched(ggml_backend_sched_new(&raw, nullptr, 1, 64, false, false));
    const float            a_data[] = {1, 2, 3, 4};
    const float            x_data[] = {5, 6};
    const float            b_data[] = {7, 8};
    float                  y_data[] = {0, 0};
    if (!sched || !ggml_backend_sched_alloc_graph(sched.get(), graph)) {
        fail(DSPARK_ERROR_BINDING, "the loaded ggml could not allocate a three-operation graph");
    }
    ggml_backend_tensor_set(a, a_data, 0, sizeof(a_data));
    ggml_backend_tensor_set(x, x_data, 0, sizeof(x_data));
    ggml_backend_tensor_set(b, b_data, 0, sizeof(b_data));
    if (ggml_backend_sched_graph_compute(sched.get(), graph) != GGML_STATUS_SUCCESS) {
        fail(DSPARK_ERROR_BINDING, "the loaded ggml could not compute a three-operation graph");
    }
    ggml_backend_tensor_get(y, y_data, 0, sizeof(y_data));
    if (std::fabs(y_data[0] - 48.0f) > 1e-4f || std::fabs(y_data[1] - 94.0f) > 1e-4f) {
        fail(DSPARK_ERROR_BINDING, format("the loaded ggml computed (%g, %g) for a graph whose result is (48, 94)",
                                          (double) y_data[0], (double) y_data[1]));
    }
}

} // namespace

void bind(void * const * libraries, size_t n_libraries) {
    std::lock_guard<std::mutex> lock(bind_mutex);
    if (!libraries || n_libraries == 0) {
        fail(DSPARK_ERROR_ARGUMENT, "dspark_bind needs at least one library handle, got none");
    }
    if (bound) {
        if (find_symbol(libraries, n_libraries, "llama_decode") != reinterpret_cast<void *>(llama_decode)) {
            fail(DSPARK_ERROR_BINDING, "libdspark is already bound to another copy of libllama in this process");
        }
        return;
    }

    // a library that is refused must not stay half bound
    struct undo_on_error {
        ~undo_on_error() {
            if (!bound) {
#define DSPARK_UNLOAD(name) name = nullptr;
                DSPARK_BOUND_FUNCTIONS(DSPARK_UNLOAD)
#undef DSPARK_UNLOAD
                llama_set_embeddings_layer_inp = nullptr;
                llama_get_embeddings_layer_inp = nullptr;
                llama_model_get_tensor         = nullptr;
            }
        }
    } undo;
    std::string missing;
#define DSPARK_LOAD(name)                                                                                             \
    name = reinterpret_cast<decltype(name)>(find_symbol(libraries, n_libraries, #name));                              \
    if (!name) {                                                                                                      \
        missing += missing.empty() ? #name : ", " #name;                                                              \
    }
    DSPARK_BOUND_FUNCTIONS(DSPARK_LOAD)
#undef DSPARK_LOAD
    // the version first: it explains missing functions better than their names do
    if (ggml_version && std::strcmp(ggml_version(), DSPARK_GGML_VERSION) != 0) {
        fail(DSPARK_ERROR_BINDING, format("libdspark was built against ggml %s but the loaded llama.cpp has ggml %s; rebuild it with: "
                                          "pip install --force-reinstall --no-deps --no-cache-dir dspark-cpp-python",
                                          DSPARK_GGML_VERSION, ggml_version()));
    }
    if (!missing.empty()) {
        fail(DSPARK_ERROR_BINDING, "the loaded llama.cpp lacks functions that libdspark needs: " + missing);
    }

    find_extension(libraries, n_libraries, llama_set_embeddings_layer_inp,
                   {"llama_set_embeddings_layer_inp", "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
                    "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z"});
    find_extension(libraries, n_libraries, llama_get_embeddings_layer_inp,
                   {"llama_get_embeddings_layer_inp", "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
                    "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z"});
    find_extension(libraries, n_libraries, llama_model_get_tensor,
                   {"_ZNK11llama_model10get_tensorEPKc", "?get_tensor@llama_model@@QEBAPEBUggml_tensor@@PEBD@Z"});

    check_three_op_graph();
    bound_libraries.assign(libraries, libraries + n_libraries);
    bound = true;
    kernels::enter();
}

void * find_bound_symbol(const char * name) { return find_symbol(bound_libraries.data(), bound_libraries.size(), name); }

void require_bound() {
    if (!bound) {
        fail(DSPARK_ERROR_STATE, "dspark_bind() has not succeeded yet; it must come before every other call");
    }
}

std::string model_architecture(const llama_model * model) {
    char buffer[128] = "";
    llama_model_meta_val_str(model, "general.architecture", buffer, sizeof(buffer));
    return buffer;
}

// Read off the model files of llama.cpp at the tested versions: those that assign t_layer_inp.
bool arch_has_layer_taps(const std::string & architecture) {
    static const char * const names[] = {
        "llama",      "qwen3",          "qwen3moe",   "qwen3next",  "qwen35",     "qwen35moe",     "gemma4",
        "gpt-oss",    "lfm2",           "lfm2moe",    "deepseek4",  "mimo2",      "nemotron_h",    "nemotron_h_moe",
        "minimax-01", "minimax-m2",     "bailingmoe3", "nanbeige",  "hunyuan_vl", "hunyuan-dense", "muse-glimmer",
    };
    return std::find(std::begin(names), std::end(names), architecture) != std::end(names);
}

bool arch_has_final_layer_tap(const std::string & architecture) {
    return architecture == "deepseek4" || architecture == "mimo2" || architecture == "nemotron_h" || architecture == "nemotron_h_moe";
}

ggml_context_ptr new_meta_context(size_t n_tensors, size_t n_nodes) {
    const size_t     graph_size = n_nodes ? ggml_graph_overhead_custom(n_nodes, false) : 0;
    ggml_init_params params     = {n_tensors * ggml_tensor_overhead() + graph_size, nullptr, /*no_alloc*/ true};
    ggml_context_ptr ctx(ggml_init(params));
    if (!ctx) {
        fail(DSPARK_ERROR_MEMORY, format("no memory for the descriptions of %zu tensors", n_tensors));
    }
    return ctx;
}

ggml_backend_dev_t find_device(const char * name) {
    ggml_backend_dev_t device = name ? ggml_backend_dev_by_name(name) : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device) {
        std::string known;
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            known += (i ? ", " : "") + std::string(ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        fail(DSPARK_ERROR_ARGUMENT, format("no ggml device named \"%s\"; there are: %s", name ? name : "CPU", known.c_str()));
    }
    return device;
}

backend_ptr new_backend(ggml_backend_dev_t device, int32_t n_threads) {
    backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (!backend) {
        fail(DSPARK_ERROR_BACKEND, format("ggml could not start its device \"%s\"", ggml_backend_dev_name(device)));
    }
    using set_n_threads_fn = void (*)(ggml_backend_t, int);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    if (auto set_n_threads = reinterpret_cast<set_n_threads_fn>(ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))) {
        set_n_threads(backend.get(), n_threads);
    }
    return backend;
}

} // namespace dspark
