// What ggml-cpu's extension point consists of, as far as no installed header declares it: our own declarations of the
// layouts of ggml 0.25.3 (ggml-backend-impl.h, ggml-cpu-impl.h, traits.h).  They hold for exactly the ggml version that
// libdspark was built against, which bind() checks; self_test() proves them on a real graph before anything relies on them.
#pragma once

#include "../llama_binding.h"

#include <vector>

// Names and order are ggml's.
struct ggml_compute_params {
    int               ith, nth; // this thread's number, and how many there are
    size_t            wsize;    // bytes at wdata, shared by all threads
    void *            wdata;
    ggml_threadpool * threadpool;
    bool              use_ref;
};

struct ggml_backend_buffer_type_i {
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type_t);
};

struct ggml_backend_buffer_type {
    ggml_backend_buffer_type_i iface;
    ggml_backend_dev_t         device;
    void *                     context; // of an extra buffer type of the CPU: an extra_buffer_type
};

struct ggml_backend_buffer_i {
    void (*free_buffer)(ggml_backend_buffer_t);
    void * (*get_base)(ggml_backend_buffer_t);
    ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor *);
    void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor *, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void * data, size_t offset, size_t size);
    void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t offset, size_t size);
    void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor *, const void * data, size_t offset, size_t size, size_t n_copies,
                          size_t stride_tensor, size_t stride_data);
    void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t offset, size_t size, size_t n_copies,
                          size_t stride_tensor, size_t stride_data);
    bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst);
    void (*clear)(ggml_backend_buffer_t, uint8_t value);
    void (*reset)(ggml_backend_buffer_t);
};

struct ggml_backend_buffer {
    ggml_backend_buffer_i      iface;
    ggml_backend_buffer_type_t buft;
    void *                     context;
    size_t                     size;
    ggml_backend_buffer_usage  usage;
};

namespace dspark::kernels {

// ggml calls objects of these two classes through their virtual tables alone, so they have ggml's functions in ggml's
// order, and need not be its classes.
class tensor_traits {
  public:
    virtual ~tensor_traits() = default;
    // Called by the planner, one thread; true takes the operation over, and size replaces ggml's own demand.
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    // Called by every thread of the pool; true if the operation is done.
    virtual bool compute_forward(ggml_compute_params * params, ggml_tensor * op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type() = default;
    // Whether the CPU can run op, one of whose sources lies in a buffer of this type.
    virtual bool            supports_op(ggml_backend_dev_t device, const ggml_tensor * op) = 0;
    // Asked for every operation, wherever its tensors lie.
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op) = 0;
};

// Functions that libggml-cpu and libggml-base export without declaring them in an installed header.
struct private_functions {
    std::vector<ggml_backend_buffer_type_t> & (*extra_buffer_types)();
    void (*barrier)(ggml_threadpool *);
    void (*chunk_set)(ggml_threadpool *, int value);
    int (*chunk_add)(ggml_threadpool *, int value); // returns the value before
    ggml_backend_buffer_t (*buffer_init)(ggml_backend_buffer_type_t, ggml_backend_buffer_i, void * context, size_t size);
};

extern private_functions ggml_private;

// Fills ggml_private; returns the name of a function that is missing, or null.
const char * bind_private_functions();

} // namespace dspark::kernels
