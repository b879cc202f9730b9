#include "hook.h"

#include "attention.h"
#include "crashing_buffer.h"
#include "isa.h"
#include "matmul.h"
#include "packed_buffer.h"
#include "self_test.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

namespace dspark::kernels {

namespace {

std::mutex           install_mutex;
bool                 hooked = false; // the self-test has passed
std::string          reason = "the kernels were not installed";
bool                 packs_weights = false;
std::atomic<bool>    active{false};
std::atomic<int64_t> n_matmul{0};
std::atomic<int64_t> n_attention{0};
std::atomic<int64_t> n_declined{0};

// The planner's decision about an operation is left in its `extra`, which ggml-cpu does not use for results: every
// thread then finds the same answer as the work buffer was made for, even if the kernels are switched meanwhile.
const char mark = 0;

bool takes(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_MUL_MAT: return (active || is_packed(op->src[0])) && matmul_supported(op);
        case GGML_OP_FLASH_ATTN_EXT: return active && attention_supported(op);
        default: return false;
    }
}

// Left to ggml, and as independent of other rows as what is taken: the transform of each row that goes before quantised caches.
bool keeps_rows_apart(const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT && op->op_params[1] == GGML_HINT_SRC0_IS_HADAMARD;
}

class traits final : public tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const bool taken = takes(op);
        if (taken || op->extra == &mark) {
            const_cast<ggml_tensor *>(op)->extra = taken ? const_cast<char *>(&mark) : nullptr;
        }
        if (!taken) {
            n_declined.fetch_add(keeps_rows_apart(op) ? 0 : 1, std::memory_order_relaxed);
        } else {
            size = op->op == GGML_OP_MUL_MAT ? matmul_work_size(n_threads, op) : attention_work_size(n_threads, op);
        }
        return taken;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->extra != &mark) {
            return false;
        }
        if (op->op == GGML_OP_MUL_MAT) {
            matmul_compute(*params, op);
        } else {
            attention_compute(*params, op);
        }
        if (params->ith == 0) {
            (op->op == GGML_OP_MUL_MAT ? n_matmul : n_attention).fetch_add(1, std::memory_order_relaxed);
        }
        return true;
    }
};

class buffer_type final : public extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT || !is_packed(op->src[0]) || !matmul_supported(op)) {
            return false;
        }
        // loaders ask with an empty buffer: such a weight will be packed only if the kernels are on
        return (active || ggml_backend_buffer_get_size(op->src[0]->buffer) > 0) &&
               (!op->src[1]->buffer || ggml_backend_buffer_is_host(op->src[1]->buffer));
    }

    tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        // those whose stock kernels look at how many rows there are; experts' products are only counted
        return op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_FLASH_ATTN_EXT || op->op == GGML_OP_MUL_MAT_ID ? &traits_ : nullptr;
    }

    traits traits_;
};

// Whether ggml's objects look as we have declared them.
bool plausible(const std::vector<ggml_backend_buffer_type_t> & list, ggml_backend_dev_t cpu) {
    buffer_ptr buffer(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(cpu), 192));
    if (!buffer || buffer->size != ggml_backend_buffer_get_size(buffer.get()) || buffer->buft != ggml_backend_buffer_get_type(buffer.get()) ||
        list.size() > 16 || list.capacity() < list.size() || list.capacity() > 1024) {
        return false;
    }
    for (ggml_backend_buffer_type_t type : list) {
        if (!type || type->device != cpu) {
            return false;
        }
    }
    return true;
}

// Whether models that are loaded from now on are offered the buffer type: llama.cpp and our drafts read a copy of the list that
// ggml-cpu makes when it is asked first.
bool offered(ggml_backend_dev_t cpu, ggml_backend_buffer_type_t type) {
    using get_extra_fn = ggml_backend_buffer_type_t * (*) (ggml_backend_dev_t);
    auto get_extra     = reinterpret_cast<get_extra_fn>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
    for (ggml_backend_buffer_type_t * extra = get_extra ? get_extra(cpu) : nullptr; extra && *extra; ++extra) {
        if (*extra == type) {
            return true;
        }
    }
    return false;
}

ggml_backend_buffer_type_t entered_type = nullptr; // in ggml-cpu's list
bool                       removed_amx  = false;

// Returns why the kernels cannot run here, or "".
std::string try_to_enter() {
    if (!kernels_of_this_machine()) {
        return "no kernel is made for this processor; they need AVX2, FMA and F16C, or AVX-512, or ARM's dot products";
    }
    if (const char * missing = bind_private_functions()) {
        return format("the loaded ggml keeps %s to itself, as static and plug-in builds do", missing);
    }
    ggml_backend_dev_t cpu  = find_device(nullptr);
    auto &             list = ggml_private.extra_buffer_types();
    if (!plausible(list, cpu)) {
        return "ggml's buffers do not look as expected; was it built with another compiler?";
    }
    const auto amx = std::find_if(list.begin(), list.end(), [](auto type) { return std::strcmp(ggml_backend_buft_name(type), "AMX") == 0; });
    if (amx != list.end() && crashes(*amx)) {
        list.erase(amx);
        removed_amx = true;
    }
    static buffer_type extra;
    entered_type = packed_buffer_type(&extra);
    list.insert(list.begin(), entered_type);
    return "";
}

const std::string & entered() {
    static const std::string problem = try_to_enter();
    return problem;
}

// Returns why the kernels cannot run here, or "".
std::string hook() {
    if (!entered().empty()) {
        return entered();
    }
    active                 = true;
    const int64_t before   = n_matmul;
    int           expected = 0;
    std::string   problem  = self_test(entered_type, expected);
    if (problem.empty() && n_matmul - before != expected) {
        problem = format("the self-test of the kernels had %d products, of which ggml passed %d on", expected, (int) (n_matmul - before));
    }
    if (problem.empty()) {
        problem = self_test_attention();
    }
    if (problem.empty() && n_attention != 2) {
        problem = format("the self-test of attention had 2 operations, of which ggml passed %d on", (int) n_attention);
    }
    if (!problem.empty()) {
        active = false;
        return problem;
    }
    hooked        = true;
    packs_weights = offered(find_device(nullptr), entered_type);
    return "";
}

} // namespace

void enter() {
    entered();
}

void install(mode wanted, uint64_t n_bytes) {
    std::lock_guard<std::mutex> lock(install_mutex);
    if (wanted == mode::off) {
        active = false;
        reason = "the kernels were switched off";
        return;
    }
    // what failed once would fail again
    static const std::string problem = hook();
    active                           = problem.empty();
    reason                           = problem;
    if (active && !packs_weights) {
        reason = "a model was loaded before dspark_cpp was imported: quantised weights keep llama.cpp's layout and kernels";
    }
    const uint64_t available = memory_available();
    if (wanted == mode::automatic && active && n_bytes > available) {
        active = false;
        reason = format("the model's %.1f GB of weights would be packed in memory, of which %.1f GB are available", (double) n_bytes / 1e9,
                        (double) available / 1e9);
    }
    if (wanted == mode::on && !active) {
        fail(DSPARK_ERROR_BINDING, "the kernels cannot be installed: " + problem);
    }
}

bool is_active() {
    return active;
}

int64_t declined() {
    return n_declined;
}

state get_state() {
    std::lock_guard<std::mutex> lock(install_mutex);
    state now;
    now.active        = active;
    now.packs_weights = packs_weights;
    now.reason        = reason;
    now.isa           = hooked ? kernels_of_this_machine()->name : "";
    now.n_matmul      = n_matmul;
    now.n_attention   = n_attention;
    now.n_bytes       = packed_bytes();
    now.removed       = removed_amx ? "AMX" : "";
    return now;
}

} // namespace dspark::kernels
