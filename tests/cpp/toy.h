/* Tiny random models, written by the tests themselves, and the libllama that they bind to. */
#ifndef DSPARK_TOY_H
#define DSPARK_TOY_H

#ifdef __cplusplus
extern "C" {
#endif

/* The handle of llama-cpp-python's libllama, opened once; its log and ggml's are silenced. */
void * toy_open_libllama(void);

/* A self-contained random draft, and a random target that it belongs to. */
void toy_write_draft(const char * path);
void toy_write_target(const char * path);

#ifdef __cplusplus
}

#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace toy {

// --- a GGUF file in pieces, so that a test can take one away --------------------------------------------------------

struct gguf {
    struct key {
        std::string          name;
        std::vector<uint8_t> value; // type and value as the file holds them
    };
    struct tensor {
        std::string          name;
        std::vector<int64_t> ne;
        int32_t              type; // a ggml_type, or what pretends to be one
        std::vector<uint8_t> data;
    };

    std::vector<key>    keys;
    std::vector<tensor> tensors;

    void set_u32(const std::string & name, uint32_t value);
    void set_f32(const std::string & name, float value);
    void set_bool(const std::string & name, bool value);
    void set_str(const std::string & name, const std::string & value);
    void set_i32s(const std::string & name, const std::vector<int32_t> & values);
    void set_bools(const std::string & name, const std::vector<bool> & values);
    void set_strs(const std::string & name, const std::vector<std::string> & values);
    void remove_key(const std::string & name);

    void     add(const std::string & name, std::vector<int64_t> ne, const std::vector<float> & values);
    void     add_i64(const std::string & name, const std::vector<int64_t> & values);
    tensor & at(const std::string & name);
    void     remove_tensor(const std::string & name);

    // The file; out_header gets the number of bytes before the tensor data.
    std::vector<uint8_t> bytes(size_t * out_header = nullptr) const;
    void                 save(const std::string & path) const;

  private:
    key & slot(const std::string & name);
};

void write_file(const std::string & path, const std::vector<uint8_t> & bytes);

// --- models ---------------------------------------------------------------------------------------------------------

// Numbers in [-1, 1), the same on every machine.
std::vector<float> random_values(size_t n, uint32_t seed);

struct draft_options {
    int H = 32, L = 2, F = 64, nq = 4, nkv = 2, d = 8; // sizes as in draft_model.h
    int V = 64, Vd = 48;                               // Vd == V: no d2t
    int R = 8, B = 5;
    std::vector<int32_t> target_layers = {0, 1};
    bool                 anchor_first  = true;
    const char *         markov        = "vanilla"; // null: none
    int                  confidence    = 2;         // 0: none, 1: of the hidden state, 2: with the Markov embedding
    bool                 own_embd      = true;
    bool                 own_output    = true;
    bool                 shared_kv     = false; // no attn_v
    bool                 extras        = false; // sinks, post-norms, layer scale, softcap, sliding and causal layers
    uint32_t             seed          = 1;
};

gguf make_draft(const draft_options & options = {});

// Architecture "llama", without a tokenizer; has_tokens gives it a token table "t0", "t1", ...
gguf make_target(uint32_t seed = 7, bool has_tokens = false);

// --- libllama -------------------------------------------------------------------------------------------------------

// clang-format off
#define TOY_LLAMA_FUNCTIONS(X)                                                                                         \
    X(ggml_log_set) X(ggml_blck_size) X(ggml_type_size) X(ggml_type_name)                                              \
    X(llama_log_set) X(llama_backend_init)                                                                             \
    X(llama_model_default_params) X(llama_model_load_from_file) X(llama_model_free)                                    \
    X(llama_context_default_params) X(llama_init_from_model) X(llama_free)                                             \
    X(llama_decode) X(llama_get_logits_ith) X(llama_get_memory) X(llama_memory_clear) X(llama_memory_seq_rm)           \
    X(llama_memory_seq_pos_max) X(llama_set_abort_callback)                                                            \
    X(llama_sampler_chain_init) X(llama_sampler_chain_default_params) X(llama_sampler_chain_add)                       \
    X(llama_sampler_init_greedy) X(llama_sampler_init_dist) X(llama_sampler_init_temp) X(llama_sampler_free)
// clang-format on

struct llama_api {
#define TOY_DECLARE(name) decltype(&::name) name;
    TOY_LLAMA_FUNCTIONS(TOY_DECLARE)
#undef TOY_DECLARE
};

const llama_api & llama();

// dspark_bind() to the libllama of this process.
void bind();

} // namespace toy
#endif

#endif
