// Binds to the libllama and ggml that the host process has already loaded.
//
// libdspark links to neither: every llama.cpp package ships a library of the same SONAME, and the dynamic linker would
// be free to give us another copy than the one whose contexts we are handed.  Instead, each function that we call is a
// variable of the same name and type in namespace dspark, filled from the host's library handle by bind().  Code inside
// the namespace therefore calls ggml by its ordinary names; a call to a function that is not listed here does not link.
#pragma once

#include "error.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <memory>

// clang-format off
#define DSPARK_BOUND_FUNCTIONS(X)                                                                                      \
    /* ggml: contexts, tensors, graphs */                                                                              \
    X(ggml_version) X(ggml_commit)                                                                                     \
    X(ggml_init) X(ggml_free) X(ggml_tensor_overhead) X(ggml_graph_overhead_custom) X(ggml_new_graph_custom)           \
    X(ggml_build_forward_expand) X(ggml_graph_n_nodes) X(ggml_graph_node)                                              \
    X(ggml_new_tensor) X(ggml_new_tensor_1d) X(ggml_new_tensor_2d) X(ggml_new_tensor_3d)                               \
    X(ggml_get_first_tensor) X(ggml_get_next_tensor) X(ggml_get_tensor)                                                \
    X(ggml_set_name) X(ggml_set_input) X(ggml_set_output)                                                              \
    X(ggml_nbytes) X(ggml_nelements) X(ggml_row_size) X(ggml_element_size)                                             \
    X(ggml_blck_size) X(ggml_type_name) X(ggml_type_size) X(ggml_is_quantized) X(ggml_fp32_to_fp16)                     \
    X(ggml_get_type_traits) X(ggml_quantize_chunk)                                                                     \
    /* ggml: operations */                                                                                             \
    X(ggml_mul_mat) X(ggml_add) X(ggml_sub) X(ggml_mul) X(ggml_scale) X(ggml_rms_norm) X(ggml_tanh) X(ggml_sigmoid)    \
    X(ggml_swiglu_split) X(ggml_geglu_split) X(ggml_geglu_erf_split)                                                   \
    X(ggml_reshape_2d) X(ggml_reshape_3d) X(ggml_view_1d) X(ggml_view_2d) X(ggml_view_3d) X(ggml_permute)              \
    X(ggml_concat) X(ggml_get_rows) X(ggml_set_rows) X(ggml_rope_ext) X(ggml_argmax) X(ggml_custom_4d)                 \
    X(ggml_flash_attn_ext) X(ggml_prec_set_acc) X(ggml_flash_attn_ext_add_sinks)                            \
    /* ggml: devices, buffers, scheduling */                                                                           \
    X(ggml_backend_dev_count) X(ggml_backend_dev_get) X(ggml_backend_dev_by_name) X(ggml_backend_dev_by_type)          \
    X(ggml_backend_dev_name) X(ggml_backend_dev_description) X(ggml_backend_dev_type) X(ggml_backend_dev_init)         \
    X(ggml_backend_dev_buffer_type) X(ggml_backend_dev_backend_reg) X(ggml_backend_dev_supports_op)                    \
    X(ggml_backend_reg_get_proc_address) X(ggml_backend_free) X(ggml_backend_supports_buft)                            \
    X(ggml_backend_buft_alloc_buffer) X(ggml_backend_buft_name)                                                        \
    X(ggml_backend_alloc_ctx_tensors_from_buft) X(ggml_backend_buffer_free) X(ggml_backend_buffer_clear)               \
    X(ggml_backend_buffer_get_size) X(ggml_backend_buffer_set_usage) X(ggml_backend_buffer_get_type)                   \
    X(ggml_backend_buffer_is_host)                                                                                      \
    X(ggml_backend_tensor_set) X(ggml_backend_tensor_get) X(ggml_backend_tensor_get_async)                             \
    X(ggml_backend_sched_new) X(ggml_backend_sched_free) X(ggml_backend_sched_alloc_graph)                             \
    X(ggml_backend_sched_graph_compute) X(ggml_backend_sched_get_tensor_backend) X(ggml_backend_sched_synchronize)     \
    /* gguf */                                                                                                         \
    X(gguf_init_from_file) X(gguf_free) X(gguf_get_data_offset) X(gguf_get_alignment)                                  \
    X(gguf_find_key) X(gguf_get_kv_type) X(gguf_get_arr_type) X(gguf_get_arr_n) X(gguf_get_arr_data)                   \
    X(gguf_get_arr_str) X(gguf_get_val_str) X(gguf_get_val_data)                                                       \
    X(gguf_get_n_tensors) X(gguf_find_tensor) X(gguf_get_tensor_name) X(gguf_get_tensor_offset)                        \
    /* llama */                                                                                                        \
    X(llama_version) X(llama_log_get) X(llama_log_set)                                                                 \
    X(llama_get_model) X(llama_model_get_vocab) X(llama_model_n_embd) X(llama_model_n_layer) X(llama_model_n_swa)      \
    X(llama_model_is_recurrent) X(llama_model_is_hybrid) X(llama_model_has_encoder) X(llama_model_meta_val_str)        \
    X(llama_model_size)                                                                                                \
    X(llama_vocab_n_tokens) X(llama_vocab_type) X(llama_vocab_get_text)                                                \
    X(llama_n_ctx_seq) X(llama_n_batch) X(llama_n_ubatch) X(llama_n_rs_seq) X(llama_n_seq_max)                  \
    X(llama_get_causal_attn) X(llama_decode) X(llama_get_logits_ith)                                                   \
    X(llama_get_memory) X(llama_memory_clear) X(llama_memory_seq_rm)                                                   \
    X(llama_memory_seq_pos_min) X(llama_memory_seq_pos_max)                                                            \
    X(llama_sampler_chain_n) X(llama_sampler_chain_get) X(llama_sampler_apply) X(llama_sampler_accept)
// clang-format on

namespace dspark {

#define DSPARK_DECLARE(name) extern decltype(&::name) name;
DSPARK_BOUND_FUNCTIONS(DSPARK_DECLARE)
#undef DSPARK_DECLARE

// Functions that libllama exports but llama.h does not declare; null where this build of libllama lacks them.
extern void (*llama_set_embeddings_layer_inp)(llama_context * ctx, uint32_t layer, bool value);
extern float * (*llama_get_embeddings_layer_inp)(llama_context * ctx, uint32_t layer);
// A weight of the model by its GGUF name, or null.  In libllama a const method: the model is its `this`.
extern const ggml_tensor * (*llama_model_get_tensor)(const llama_model * model, const char * name);

// Fills all of the above and checks the library behind them; see dspark_bind().
void bind(void * const * libraries, size_t n_libraries);

// A symbol of the bound libraries that no header declares, or null.
void * find_bound_symbol(const char * name);

// Throws unless bind() has succeeded.
void require_bound();

// The architecture string of a model ("llama").
std::string model_architecture(const llama_model * model);

// True if llama.cpp's graph of this architecture sets layer inputs, and whether it also sets the one after the last
// layer.  For any other architecture asking for a layer input ends the process.
bool arch_has_layer_taps(const std::string & architecture);
bool arch_has_final_layer_tap(const std::string & architecture);

// Owners of ggml handles.
struct ggml_deleter {
    void operator()(ggml_context * p) const { ggml_free(p); }
    void operator()(gguf_context * p) const { gguf_free(p); }
    void operator()(ggml_backend * p) const { ggml_backend_free(p); }
    void operator()(ggml_backend_buffer * p) const { ggml_backend_buffer_free(p); }
    void operator()(ggml_backend_sched * p) const { ggml_backend_sched_free(p); }
};

using ggml_context_ptr = std::unique_ptr<ggml_context, ggml_deleter>;
using gguf_context_ptr = std::unique_ptr<gguf_context, ggml_deleter>;
using backend_ptr      = std::unique_ptr<ggml_backend, ggml_deleter>;
using buffer_ptr       = std::unique_ptr<ggml_backend_buffer, ggml_deleter>;
using sched_ptr        = std::unique_ptr<ggml_backend_sched, ggml_deleter>;

// A ggml context that holds only the descriptions of up to n_tensors tensors and one graph of n_nodes (0: none).
ggml_context_ptr new_meta_context(size_t n_tensors, size_t n_nodes = 0);

// The named device, or the CPU for a null name.  Throws if there is none of that name.
ggml_backend_dev_t find_device(const char * name);

// A backend of the device with the number of threads set, where it has such a setting.
backend_ptr new_backend(ggml_backend_dev_t device, int32_t n_threads);

} // namespace dspark
