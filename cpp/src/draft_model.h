// The weights and settings of a draft: read and validated here in full, immutable afterwards.
// Shapes are in ggml order, dimension 0 first; the symbols are those of docs/FILE_FORMAT.md.
#pragma once

#include "llama_binding.h"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dspark {

enum class activation { silu, gelu, gelu_tanh };

struct draft_hparams {
    int32_t n_layer     = 0; // L
    int32_t n_embd      = 0; // H, equal to the target's
    int32_t n_ff        = 0; // F
    int32_t n_head      = 0; // nq
    int32_t n_head_kv   = 0; // nkv
    int32_t n_embd_head = 0; // d
    int32_t n_ctx_train = 0;

    int32_t n_vocab       = 0; // V, 0: the file does not say
    int32_t n_vocab_draft = 0; // Vd, 0: equal to V with a borrowed head
    int32_t mask_token_id = 0;

    int32_t              block_size         = 0;    // B, slots
    bool                 sample_from_anchor = true; // anchor-first; false: 1+N
    std::vector<int32_t> target_layers;             // m ids, inputs of layer i, in the order of fc

    float      rms_eps         = 0;
    float      attn_scale      = 0; // of the scores
    float      value_scale     = 1; // of the attention's output
    float      embedding_scale = 1;
    float      logit_scale     = 1;
    float      logit_softcap   = 0; // 0: none
    bool       value_norm      = false;
    activation act             = activation::silu;

    int32_t n_rot            = 0;
    float   rope_freq_base   = 10000;
    float   rope_freq_scale  = 1;
    float   rope_ext_factor  = 0;
    float   rope_attn_factor = 1;
    float   rope_beta_fast   = 32;
    float   rope_beta_slow   = 1;
    int32_t rope_n_ctx_orig  = 0;

    int32_t n_swa              = 0;     // W, 0: no sliding layers
    bool    swa_from_anchor    = false; // window fixed at the anchor instead of moving with the query

    int32_t markov_rank = 0; // R
    int32_t markov_type = DSPARK_MARKOV_NONE;

    std::vector<float> confidence_temperature; // [n_draft_max] divides the head's logits; empty: none

    // The first slot that predicts, and how many do.
    int32_t first_slot() const { return sample_from_anchor ? 0 : 1; }
    int32_t n_draft_max() const { return block_size - first_slot(); }
    int32_t n_features() const { return (int32_t) target_layers.size() * n_embd; }
};

struct draft_layer {
    bool is_swa    = false;
    bool is_causal = false; // inside the block

    ggml_tensor * attn_norm      = nullptr; // {H}
    ggml_tensor * wq             = nullptr; // {H, nq*d}
    ggml_tensor * wk             = nullptr; // {H, nkv*d}
    ggml_tensor * wv             = nullptr; // {H, nkv*d}, null: V is the raw K projection
    ggml_tensor * wo             = nullptr; // {nq*d, H}
    ggml_tensor * q_norm         = nullptr; // {d}
    ggml_tensor * k_norm         = nullptr; // {d}
    ggml_tensor * attn_sinks     = nullptr; // {nq}, optional
    ggml_tensor * attn_post_norm = nullptr; // {H}, optional
    ggml_tensor * ffn_norm       = nullptr; // {H}
    ggml_tensor * ffn_gate       = nullptr; // {H, F}
    ggml_tensor * ffn_up         = nullptr; // {H, F}
    ggml_tensor * ffn_down       = nullptr; // {F, H}
    ggml_tensor * ffn_post_norm  = nullptr; // {H}, optional
    ggml_tensor * out_scale      = nullptr; // {1}, optional
};

// What a draft must know of a target to belong to it.
struct target_traits {
    std::string              architecture;
    int32_t                  n_embd  = 0;
    int32_t                  n_layer = 0;
    std::vector<std::string> tokens;

    static target_traits of_model(const llama_model * model);
    static target_traits of_file(const std::string & path); // reads the header only
};

struct draft_model {
    // Reads path.  With weights false only the header is kept, for inspection.
    static std::shared_ptr<const draft_model> load(const std::string & path, const char * device, bool weights);

    draft_hparams            hp;
    std::vector<draft_layer> layers;

    ggml_tensor * tok_embd     = nullptr; // {H, V}, null: borrowed
    ggml_tensor * output       = nullptr; // {H, Vd}, null: borrowed
    ggml_tensor * output_norm  = nullptr; // {H}
    ggml_tensor * fc           = nullptr; // {m*H, H}
    ggml_tensor * fc_norm      = nullptr; // {H}
    ggml_tensor * rope_freqs   = nullptr; // {d/2}, optional
    ggml_tensor * markov_w1    = nullptr; // {R, V}
    ggml_tensor * markov_w2    = nullptr; // {R, Vd}
    ggml_tensor * markov_gate  = nullptr; // {H+R, R}
    ggml_tensor * markov_gate_b = nullptr; // {R}
    ggml_tensor * markov_joint = nullptr; // {2R+H, 3R}
    ggml_tensor * markov_joint_b = nullptr; // {3R}
    ggml_tensor * conf_proj    = nullptr; // {H+R, 1} or {H, 1}
    ggml_tensor * conf_proj_b  = nullptr; // {1}, optional
    ggml_tensor * d2t          = nullptr; // {1, Vd} I32, null: draft rows are target ids

    std::vector<int32_t>     d2t_ids; // [Vd] absolute target ids, empty without d2t
    std::vector<std::string> tokens;  // [V] the token table, empty if the file has none

    std::map<std::string, std::string> meta; // every string value of the file's metadata
    std::string                        path;
    ggml_backend_dev_t                 device = nullptr;
    bool                               has_weights = false;
    uint64_t                           n_bytes     = 0;
    uint64_t                           n_params    = 0;
    uint64_t                           fingerprint = 0; // of names, types, shapes and samples of the weights; never 0 with weights

    bool confidence_with_markov() const { return conf_proj && conf_proj->ne[0] > hp.n_embd; }

    // Throws DSPARK_ERROR_MISMATCH with both sides' values unless the draft belongs to the target.
    void check_target(const target_traits & target) const;

  private:
    // the tensors of each kind of memory, and their data
    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> tensors;
    std::vector<buffer_ptr>                                buffers;

    friend class draft_loader;
};

} // namespace dspark
