#include "draft_model.h"

#include "gguf_file.h"
#include "snapshot.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace dspark {

// Reads one file into one draft_model.
class draft_loader {
  public:
    draft_loader(const std::string & path, const char * device, bool weights) : file(path), model(std::make_shared<draft_model>()) {
        model->path        = path;
        model->device      = find_device(device);
        model->has_weights = weights;
    }

    std::shared_ptr<const draft_model> load() {
        read_hparams();
        read_tokens();
        list_tensors();
        refuse_unused_tensors();
        read_d2t();
        if (model->has_weights) {
            read_weights();
        }
        return model;
    }

  private:
    gguf_file                    file;
    std::shared_ptr<draft_model> model;
    std::set<std::string>        used;

    int32_t get_count(const char * key, uint32_t max) {
        const uint32_t value = file.get_u32(key);
        if (value < 1 || value > max) {
            file.refuse(format("%s is %u, expected 1 to %u", key, value, max));
        }
        return (int32_t) value;
    }

    void read_hparams() {
        draft_hparams & hp   = model->hp;
        const std::string arch = file.get_str("general.architecture");
        if (arch != "dflash") {
            const bool spelled = arch == "dspark" || arch == "dflash-draft";
            file.refuse(format("general.architecture is \"%s\", expected \"dflash\"%s", arch.c_str(),
                               spelled ? " (the name that llama.cpp gives DSpark and DFlash drafts; convert the checkpoint again)" : "; is this the target?"));
        }
        if (file.has("dflash.hyper_connection.count") && file.get_u32("dflash.hyper_connection.count") > 0) {
            file.refuse("DeepSeek-V4 drafts (dflash.hyper_connection.count > 0) are not supported");
        }
        if (file.has("dflash.selector_rank")) {
            file.refuse("DFlash2 drafts (dflash.selector_rank) are not supported");
        }
        hp.n_layer     = get_count("dflash.block_count", 1024);
        hp.n_ctx_train = get_count("dflash.context_length", INT32_MAX);
        hp.n_embd      = get_count("dflash.embedding_length", 1 << 20);
        hp.n_ff        = get_count("dflash.feed_forward_length", 1 << 24);
        hp.n_head      = get_count("dflash.attention.head_count", 1 << 16);
        hp.n_head_kv   = get_count("dflash.attention.head_count_kv", 1 << 16);
        hp.n_embd_head = file.has("dflash.attention.key_length") ? get_count("dflash.attention.key_length", 1 << 14) : hp.n_embd / hp.n_head;
        hp.rms_eps     = file.get_f32("dflash.attention.layer_norm_rms_epsilon");
        if (hp.n_head % hp.n_head_kv != 0) {
            file.refuse(format("dflash.attention.head_count is %d, expected a multiple of head_count_kv, %d", hp.n_head, hp.n_head_kv));
        }
        if (hp.n_embd_head < 2 || hp.n_embd_head % 2 != 0) {
            file.refuse(format("the head size is %d, expected an even number", hp.n_embd_head));
        }
        const uint32_t value_length = file.get_u32("dflash.attention.value_length", (uint32_t) hp.n_embd_head);
        if (value_length != (uint32_t) hp.n_embd_head) {
            file.refuse(format("dflash.attention.value_length is %u, expected key_length, %d", value_length, hp.n_embd_head));
        }
        if (!(hp.rms_eps > 0)) {
            file.refuse(format("dflash.attention.layer_norm_rms_epsilon is %g, expected a positive number", (double) hp.rms_eps));
        }

        hp.attn_scale      = file.get_f32("dflash.attention.scale", 0.0f);
        hp.attn_scale      = hp.attn_scale != 0.0f ? hp.attn_scale : 1.0f / std::sqrt((float) hp.n_embd_head);
        hp.value_scale     = nonzero_or_one("dflash.attention.value_scale");
        hp.embedding_scale = nonzero_or_one("dflash.embedding_scale");
        hp.logit_scale     = nonzero_or_one("dflash.logit_scale");
        hp.logit_softcap   = file.get_f32("dflash.final_logit_softcapping", 0.0f);
        if (hp.logit_softcap < 0) {
            file.refuse(format("dflash.final_logit_softcapping is %g, expected 0 or more", (double) hp.logit_softcap));
        }
        const std::string act = file.get_str("dflash.hidden_activation", "silu");
        if (act == "silu") {
            hp.act = activation::silu;
        } else if (act == "gelu") {
            hp.act = activation::gelu;
        } else if (act == "gelu_pytorch_tanh") {
            hp.act = activation::gelu_tanh;
        } else {
            file.refuse("dflash.hidden_activation is \"" + act + "\", expected silu, gelu or gelu_pytorch_tanh");
        }

        read_rope();
        read_block();
        read_windows();
    }

    float nonzero_or_one(const char * key) {
        const float value = file.get_f32(key, 0.0f);
        return value != 0.0f ? value : 1.0f;
    }

    void read_rope() {
        draft_hparams & hp = model->hp;
        const uint32_t n_rot = file.get_u32("dflash.rope.dimension_count", (uint32_t) hp.n_embd_head);
        if (n_rot < 2 || n_rot > (uint32_t) hp.n_embd_head || n_rot % 2 != 0) {
            file.refuse(format("dflash.rope.dimension_count is %u, expected an even number up to the head size, %d", n_rot, hp.n_embd_head));
        }
        hp.n_rot          = (int32_t) n_rot;
        hp.rope_freq_base = file.get_f32("dflash.rope.freq_base", 10000.0f);
        if (!(hp.rope_freq_base > 0)) {
            file.refuse(format("dflash.rope.freq_base is %g, expected a positive number", (double) hp.rope_freq_base));
        }
        // Positions of a draft are one-dimensional, where M-RoPE with the degenerate sections (n_rot/2, 0, 0, 0) is plain rope.
        if (file.has("dflash.rope.dimension_sections")) {
            const std::vector<int32_t> sections = file.get_i32_array("dflash.rope.dimension_sections");
            for (size_t i = 0; i < sections.size(); ++i) {
                const int32_t wanted = i == 0 ? hp.n_rot / 2 : 0;
                if (sections[i] != wanted) {
                    file.refuse(format("dflash.rope.dimension_sections[%zu] is %d, expected %d", i, sections[i], wanted));
                }
            }
        }

        const std::string scaling = file.get_str("dflash.rope.scaling.type", "none");
        const float       factor  = file.get_f32("dflash.rope.scaling.factor", 1.0f);
        if (scaling != "none" && !(factor > 0)) {
            file.refuse(format("dflash.rope.scaling.factor is %g, expected a positive number", (double) factor));
        }
        if (scaling == "linear") {
            hp.rope_freq_scale = 1.0f / factor;
        } else if (scaling == "yarn") {
            hp.rope_freq_scale = 1.0f / factor;
            hp.rope_ext_factor = file.get_f32("dflash.rope.scaling.yarn_ext_factor", 1.0f);
            hp.rope_beta_fast  = file.get_f32("dflash.rope.scaling.yarn_beta_fast", 32.0f);
            hp.rope_beta_slow  = file.get_f32("dflash.rope.scaling.yarn_beta_slow", 1.0f);
            hp.rope_n_ctx_orig = get_count("dflash.rope.scaling.original_context_length", INT32_MAX);
            // where it extrapolates, ggml multiplies by 1 + 0.1 ln(factor), the usual attention factor, by itself
            const float usual   = 1.0f + 0.1f * std::log(factor);
            const float wanted  = file.get_f32("dflash.rope.scaling.yarn_attn_factor", usual);
            hp.rope_attn_factor = hp.rope_ext_factor != 0.0f ? wanted / usual : wanted;
        } else if (scaling != "none") {
            file.refuse("dflash.rope.scaling.type is \"" + scaling + "\", expected none, linear or yarn");
        }
    }

    void read_block() {
        draft_hparams & hp = model->hp;
        hp.block_size    = get_count("dflash.block_size", DSPARK_BLOCK_MAX);
        hp.target_layers = file.get_i32_array("dflash.target_layers");
        if (hp.target_layers.empty() || hp.target_layers.size() > 256) {
            file.refuse(format("dflash.target_layers has %zu ids, expected 1 to 256", hp.target_layers.size()));
        }
        for (int32_t id : hp.target_layers) {
            if (id < 0 || id > 4096) {
                file.refuse(format("dflash.target_layers contains %d, expected the input of a layer, 0 or more", id));
            }
        }
        // plain DFlash is trained as 1+N; with a Markov head the older converters mean anchor-first when they are silent
        hp.sample_from_anchor = file.get_bool("dflash.sample_from_anchor", file.find_tensor("markov_w1.weight") != nullptr);
        if (hp.n_draft_max() < 1) {
            file.refuse(format("dflash.block_size is %d, expected 2 or more with sample_from_anchor = false", hp.block_size));
        }
        // Not read through the tokenizer: a draft without one still has its mask token.
        const uint32_t mask = file.get_u32("tokenizer.ggml.mask_token_id");
        hp.mask_token_id    = (int32_t) std::min<uint32_t>(mask, INT32_MAX);
    }

    void read_windows() {
        draft_hparams & hp = model->hp;
        model->layers.resize((size_t) hp.n_layer);
        const bool causal = file.get_bool("dflash.attention.causal", false);
        const std::vector<bool> causal_pattern = file.has("dflash.attention.causal_pattern")
            ? file.get_bool_array("dflash.attention.causal_pattern", model->layers.size())
            : std::vector<bool>(model->layers.size(), causal);
        hp.n_swa = (int32_t) std::min<uint32_t>(file.get_u32("dflash.attention.sliding_window", 0), INT32_MAX);
        const std::vector<bool> swa_pattern = hp.n_swa > 0
            ? file.get_bool_array("dflash.attention.sliding_window_pattern", model->layers.size())
            : std::vector<bool>(model->layers.size(), false);
        for (size_t il = 0; il < model->layers.size(); ++il) {
            model->layers[il].is_causal = causal_pattern[il];
            model->layers[il].is_swa    = swa_pattern[il];
        }
        const std::string origin = file.get_str("dflash.attention.window_origin", "query");
        if (origin != "query" && origin != "anchor") {
            file.refuse("dflash.attention.window_origin is \"" + origin + "\", expected query or anchor");
        }
        hp.swa_from_anchor = origin == "anchor";
    }

    void read_tokens() {
        for (const char * key : {"general.name", "tokenizer.ggml.model", "dflash.verifier.name", "dflash.source.format", "dflash.source.sha256",
                                 "dflash.source.converter", "dflash.tokens_sha256", "general.architecture"}) {
            if (const char * text = file.find_str(key)) {
                model->meta[key] = text;
            }
        }
        if (file.has("tokenizer.ggml.tokens")) {
            model->tokens = file.get_str_array("tokenizer.ggml.tokens");
        }
    }

    // How a weight is used decides where it can live.
    enum class use {
        plain,   // element by element
        product, // only as the left side of a matrix product
        rows     // looked up by row
    };

    // A tensor of the file, described in the context of its kind of memory; ne with -1 takes the file's value.
    ggml_tensor * want(const std::string & name, std::vector<int64_t> ne, bool required, use how = use::product) {
        const ggml_tensor * seen = file.find_tensor(name);
        if (!seen) {
            if (required) {
                file.refuse("the tensor " + name + " is missing");
            }
            return nullptr;
        }
        ne.resize(GGML_MAX_DIMS, 1);
        for (int i = 0; i < GGML_MAX_DIMS; ++i) {
            if (ne[(size_t) i] != -1 && seen->ne[i] != ne[(size_t) i]) {
                while (ne.size() > 1 && ne.back() == 1) {
                    ne.pop_back();
                }
                file.refuse("the tensor " + name + " has shape " + shape_text(seen) + ", expected " + shape_text(ne));
            }
        }
        // q8_1 and q8_K are for the right side of products: ggml has no kernel that reads weights of them, and would crash
        const bool is_right_side = seen->type == GGML_TYPE_Q8_1 || seen->type == GGML_TYPE_Q8_K;
        const bool is_float      = seen->type == GGML_TYPE_F32 || seen->type == GGML_TYPE_F16 || seen->type == GGML_TYPE_BF16;
        const bool is_weight     = is_float || (ggml_is_quantized(seen->type) && !is_right_side);
        if (how == use::plain ? seen->type != GGML_TYPE_F32 : !is_weight) {
            file.refuse("the tensor " + name + " has type " + ggml_type_name(seen->type) + ", expected " + (how == use::plain ? "f32" : "a float or quantised type"));
        }
        used.insert(name);
        ggml_tensor * tensor = ggml_new_tensor(context_for(choose_memory(seen, how)), seen->type, GGML_MAX_DIMS, seen->ne);
        ggml_set_name(tensor, name.c_str());
        model->n_params += (uint64_t) ggml_nelements(tensor);
        return tensor;
    }

    ggml_tensor * want_f32(const std::string & name, std::vector<int64_t> ne, bool required) {
        return want(name, std::move(ne), required, use::plain);
    }

    ggml_context * context_for(ggml_backend_buffer_type_t memory) {
        ggml_context_ptr & ctx = model->tensors[memory];
        if (!ctx) {
            ctx = new_meta_context(file.tensor_names().size() + 1);
        }
        return ctx.get();
    }

    ggml_backend_buffer_type_t choose_memory(const ggml_tensor * seen, use how) {
        ggml_backend_buffer_type_t memory = ggml_backend_dev_buffer_type(model->device);
        ggml_context_ptr           ctx    = new_meta_context(4);
        ggml_tensor *              weight = ggml_new_tensor_2d(ctx.get(), seen->type, seen->ne[0], seen->ne[1]);
        if (how == use::rows) {
            // kept in host memory where the device cannot gather rows of the type: the scheduler would otherwise copy the whole
            // table over for every lookup
            ggml_tensor * ids = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
            return ggml_backend_dev_supports_op(model->device, ggml_get_rows(ctx.get(), weight, ids)) ? memory
                                                                                                      : ggml_backend_dev_buffer_type(find_device(nullptr));
        }
        if (how == use::product) {
            // memory types of the device that keep weights in a layout made for its matrix kernels
            using get_extra_fn = ggml_backend_buffer_type_t * (*) (ggml_backend_dev_t);
            auto get_extra     = reinterpret_cast<get_extra_fn>(
                ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(model->device), "ggml_backend_dev_get_extra_bufts"));
            ggml_tensor * product = ggml_mul_mat(ctx.get(), weight, ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, seen->ne[0], 8));
            for (ggml_backend_buffer_type_t * extra = get_extra ? get_extra(model->device) : nullptr; extra && *extra; ++extra) {
                buffer_ptr empty(ggml_backend_buft_alloc_buffer(*extra, 0));
                weight->buffer = empty.get();
                if (empty && ggml_backend_dev_supports_op(model->device, product)) {
                    return *extra;
                }
            }
        }
        return memory;
    }

    void list_tensors() {
        draft_hparams & hp = model->hp;
        const int64_t   H  = hp.n_embd;
        const int64_t   F  = hp.n_ff;
        const int64_t   m  = (int64_t) hp.target_layers.size();
        const int64_t   dq = (int64_t) hp.n_head * hp.n_embd_head;
        const int64_t   dk = (int64_t) hp.n_head_kv * hp.n_embd_head;

        find_vocabularies();
        const int64_t V  = hp.n_vocab > 0 ? hp.n_vocab : -1;
        const int64_t Vd = hp.n_vocab_draft > 0 ? hp.n_vocab_draft : -1;

        model->tok_embd    = want("token_embd.weight", {H, V}, false, use::rows);
        model->output      = want("output.weight", {H, Vd}, file.find_tensor("d2t") != nullptr);
        model->output_norm = want_f32("output_norm.weight", {H}, true);
        model->fc          = want("fc.weight", {m * H, H}, true);
        model->fc_norm     = want_f32("enc.output_norm.weight", {H}, true);
        model->rope_freqs  = want_f32("rope_freqs.weight", {hp.n_embd_head / 2}, false);

        list_heads(H, V, Vd);

        for (int32_t il = 0; il < hp.n_layer; ++il) {
            const std::string p = "blk." + std::to_string(il) + ".";
            draft_layer &     l = model->layers[(size_t) il];
            l.attn_norm      = want_f32(p + "attn_norm.weight", {H}, true);
            l.wq             = want(p + "attn_q.weight", {H, dq}, true);
            l.wk             = want(p + "attn_k.weight", {H, dk}, true);
            l.wv             = want(p + "attn_v.weight", {H, dk}, false);
            l.wo             = want(p + "attn_output.weight", {dq, H}, true);
            l.q_norm         = want_f32(p + "attn_q_norm.weight", {hp.n_embd_head}, true);
            l.k_norm         = want_f32(p + "attn_k_norm.weight", {hp.n_embd_head}, true);
            l.attn_sinks     = want_f32(p + "attn_sinks.weight", {hp.n_head}, false);
            l.attn_post_norm = want_f32(p + "post_attention_norm.weight", {H}, false);
            l.ffn_norm       = want_f32(p + "ffn_norm.weight", {H}, true);
            l.ffn_gate       = want(p + "ffn_gate.weight", {H, F}, true);
            l.ffn_up         = want(p + "ffn_up.weight", {H, F}, true);
            l.ffn_down       = want(p + "ffn_down.weight", {F, H}, true);
            l.ffn_post_norm  = want_f32(p + "post_ffw_norm.weight", {H}, false);
            l.out_scale      = want_f32(p + "layer_output_scale.weight", {1}, false);
        }
        check_shared_values();
    }

    // V and Vd follow from whichever of token table, W1, embedding, head and d2t the file has; they must agree.
    void find_vocabularies() {
        draft_hparams & hp = model->hp;
        auto agree = [&](int32_t & count, int64_t seen, const char * where) {
            if (count != 0 && count != seen) {
                file.refuse(format("%s has %lld entries, expected %d as elsewhere in the file", where, (long long) seen, count));
            }
            if (seen < 1 || seen > INT32_MAX) {
                file.refuse(format("%s has %lld entries, expected 1 to %d", where, (long long) seen, INT32_MAX));
            }
            count = (int32_t) seen;
        };
        if (!model->tokens.empty()) {
            agree(hp.n_vocab, (int64_t) model->tokens.size(), "tokenizer.ggml.tokens");
        }
        if (auto * t = file.find_tensor("markov_w1.weight")) {
            agree(hp.n_vocab, t->ne[1], "markov_w1.weight");
        }
        if (auto * t = file.find_tensor("token_embd.weight")) {
            agree(hp.n_vocab, t->ne[1], "token_embd.weight");
        }
        const bool reduced = file.find_tensor("d2t") != nullptr;
        if (reduced) {
            agree(hp.n_vocab_draft, file.find_tensor("d2t")->ne[0], "d2t");
        } else if (hp.n_vocab) {
            hp.n_vocab_draft = hp.n_vocab;
        }
        if (auto * t = file.find_tensor("output.weight")) {
            if (!reduced && hp.n_vocab && t->ne[1] != hp.n_vocab) {
                file.refuse(format("output.weight has %lld rows for a vocabulary of %d, and the tensor d2t that would map them is missing",
                                   (long long) t->ne[1], hp.n_vocab));
            }
            agree(hp.n_vocab_draft, t->ne[1], "output.weight");
        }
        if (hp.n_vocab && hp.n_vocab_draft > hp.n_vocab) {
            file.refuse(format("the draft vocabulary has %d entries, more than the target's %d", hp.n_vocab_draft, hp.n_vocab));
        }
        if (hp.n_vocab && hp.mask_token_id >= hp.n_vocab) {
            file.refuse(format("tokenizer.ggml.mask_token_id is %d, expected a token id below %d", hp.mask_token_id, hp.n_vocab));
        }
    }

    void list_heads(int64_t H, int64_t V, int64_t Vd) {
        draft_hparams & hp = model->hp;
        const ggml_tensor * w1 = file.find_tensor("markov_w1.weight");
        const std::string type = file.get_str("dflash.markov_head_type", "vanilla");
        if (w1) {
            const int64_t R = w1->ne[0];
            if (R < 1 || R > (1 << 16)) {
                file.refuse(format("the Markov rank, ne[0] of markov_w1.weight, is %lld, expected 1 to 65536", (long long) R));
            }
            hp.markov_rank   = (int32_t) R;
            model->markov_w1 = want("markov_w1.weight", {R, V}, true, use::rows);
            model->markov_w2 = want("markov_w2.weight", {R, Vd}, true);
            if (type == "vanilla") {
                hp.markov_type = DSPARK_MARKOV_VANILLA;
            } else if (type == "gated") {
                hp.markov_type       = DSPARK_MARKOV_GATED;
                model->markov_gate   = want("markov_gate.weight", {H + R, R}, true);
                model->markov_gate_b = want_f32("markov_gate.bias", {R}, true);
            } else if (type == "rnn") {
                hp.markov_type        = DSPARK_MARKOV_RNN;
                model->markov_joint   = want("markov_joint.weight", {2 * R + H, 3 * R}, true);
                model->markov_joint_b = want_f32("markov_joint.bias", {3 * R}, true);
            } else {
                file.refuse("dflash.markov_head_type is \"" + type + "\", expected vanilla, gated or rnn");
            }
        } else if (file.find_tensor("markov_w2.weight")) {
            file.refuse("the tensor markov_w1.weight is missing although markov_w2.weight is there");
        } else if (file.has("dflash.markov_head_type")) {
            file.refuse("dflash.markov_head_type is \"" + type + "\" but the tensor markov_w1.weight is missing");
        }

        if (const ggml_tensor * conf = file.find_tensor("conf_proj.weight")) {
            const int64_t R = hp.markov_rank;
            if (conf->ne[0] != H && (R == 0 || conf->ne[0] != H + R)) {
                file.refuse(format("the tensor conf_proj.weight has width %lld, expected %lld%s", (long long) conf->ne[0], (long long) H,
                                   R ? format(" or, with the Markov input, %lld", (long long) (H + R)).c_str() : " for a draft without Markov head"));
            }
            model->conf_proj   = want("conf_proj.weight", {conf->ne[0], 1}, true);
            model->conf_proj_b = want_f32("conf_proj.bias", {1}, false);
        } else if (file.find_tensor("conf_proj.bias")) {
            file.refuse("the tensor conf_proj.weight is missing although conf_proj.bias is there");
        }
        const bool stated = file.get_bool("dflash.has_confidence_head", model->conf_proj != nullptr);
        if (stated != (model->conf_proj != nullptr)) {
            file.refuse(stated ? "dflash.has_confidence_head is true but the tensor conf_proj.weight is missing"
                               : "dflash.has_confidence_head is false but the tensor conf_proj.weight is there");
        }
        const char * key = "dflash.confidence_temperature";
        if (file.has(key)) {
            if (!model->conf_proj) {
                file.refuse(format("the key %s is there but the tensor conf_proj.weight is missing", key));
            }
            hp.confidence_temperature = file.get_f32_array(key, (size_t) hp.n_draft_max());
            for (size_t k = 0; k < hp.confidence_temperature.size(); ++k) {
                const float t = hp.confidence_temperature[k];
                if (!(t > 0) || !std::isfinite(t)) {
                    file.refuse(format("%s[%zu] is %g, expected a positive number", key, k, (double) t));
                }
            }
        }
    }

    void check_shared_values() {
        const bool shared_kv = model->layers[0].wv == nullptr;
        for (size_t il = 0; il < model->layers.size(); ++il) {
            if ((model->layers[il].wv == nullptr) != shared_kv) {
                file.refuse(format("the tensor blk.%zu.attn_v.weight is missing, although other layers have theirs", shared_kv ? 0 : il));
            }
        }
        // Gemma 4: V heads are normalised without weight; files that share K and V are of that kind
        model->hp.value_norm = file.get_bool("dflash.attention.value_norm", shared_kv);
    }

    void read_d2t() {
        const draft_hparams & hp   = model->hp;
        const ggml_tensor *   seen = file.find_tensor("d2t");
        if (!seen) {
            return;
        }
        if (seen->type != GGML_TYPE_I64 || seen->ne[1] != 1 || seen->ne[2] != 1 || seen->ne[3] != 1) {
            file.refuse(format("the tensor d2t has type %s and shape %s, expected i64 {n}", ggml_type_name(seen->type), shape_text(seen).c_str()));
        }
        std::vector<int64_t> ids((size_t) seen->ne[0]);
        file.read_tensor("d2t", ids.data());
        // the map indexes buffers of the target's vocabulary: a wrong entry would write outside of them
        const int64_t  limit = hp.n_vocab ? hp.n_vocab : INT32_MAX;
        std::set<int64_t> known;
        model->d2t_ids.reserve(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) {
            if (ids[i] < 0 || ids[i] >= limit) {
                file.refuse(format("d2t[%zu] is %lld, expected a token id below %lld", i, (long long) ids[i], (long long) limit));
            }
            if (!known.insert(ids[i]).second) {
                file.refuse(format("d2t[%zu] is %lld, a token that an earlier row has already (are these offsets? the file must hold absolute ids)",
                                   i, (long long) ids[i]));
            }
            model->d2t_ids.push_back((int32_t) ids[i]);
        }
        model->d2t = ggml_new_tensor_2d(context_for(ggml_backend_dev_buffer_type(model->device)), GGML_TYPE_I32, 1, (int64_t) ids.size());
        ggml_set_name(model->d2t, "d2t");
    }

    void refuse_unused_tensors() {
        used.insert("d2t");
        const std::vector<std::string> names = file.tensor_names();
        for (const std::string & name : names) {
            if (!used.count(name)) {
                file.refuse("the tensor " + name + " is not one that a draft of this kind uses");
            }
        }
        // optional tensors are missed by nobody, unless the writer says how many there are
        if (file.has("dflash.tensor_count") && file.get_u32("dflash.tensor_count") != names.size()) {
            file.refuse(format("the file has %zu tensors, expected dflash.tensor_count, %u", names.size(), file.get_u32("dflash.tensor_count")));
        }
    }

    void read_weights() {
        std::vector<uint8_t>            bytes;
        std::map<std::string, uint64_t> hashes;
        for (const auto & [memory, ctx] : model->tensors) {
            allocate(memory, ctx.get());
            for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t; t = ggml_get_next_tensor(ctx.get(), t)) {
                if (t == model->d2t) {
                    ggml_backend_tensor_set(t, model->d2t_ids.data(), 0, ggml_nbytes(t));
                    continue;
                }
                bytes.resize(ggml_nbytes(t));
                file.read_tensor(t->name, bytes.data());
                ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
                hashes[t->name] = hash_of(t, bytes);
            }
        }
        fnv1a hash;
        for (const auto & [name, value] : hashes) { // by name: the kinds of memory differ between machines
            hash.add(name.data(), name.size());
            hash.add(value);
        }
        hash.add(model->d2t_ids.data(), model->d2t_ids.size() * sizeof(int32_t));
        model->fingerprint = std::max<uint64_t>(hash.value(), 1);
    }

    // All of a small tensor, the beginning and the end of a large one: a training run moves every weight.
    static uint64_t hash_of(const ggml_tensor * t, const std::vector<uint8_t> & bytes) {
        constexpr size_t n_sampled = 1 << 16;
        const size_t     n         = std::min(bytes.size(), n_sampled);
        fnv1a            hash;
        hash.add(t->type);
        hash.add(t->ne, sizeof(t->ne));
        hash.add(bytes.data(), n);
        hash.add(bytes.data() + bytes.size() - n, n);
        return hash.value();
    }

    void allocate(ggml_backend_buffer_type_t memory, ggml_context * ctx) {
        buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx, memory));
        if (!buffer) {
            uint64_t size = 0;
            for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
                size += ggml_nbytes(t);
            }
            fail(DSPARK_ERROR_MEMORY, format("cannot allocate %llu bytes of %s memory for the draft's weights", (unsigned long long) size,
                                             ggml_backend_buft_name(memory)));
        }
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        model->n_bytes += ggml_backend_buffer_get_size(buffer.get());
        model->buffers.push_back(std::move(buffer));
    }
};

std::shared_ptr<const draft_model> draft_model::load(const std::string & path, const char * device, bool weights) {
    require_bound();
    return draft_loader(path, device, weights).load();
}

target_traits target_traits::of_model(const llama_model * model) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    target_traits       traits;
    traits.architecture = model_architecture(model);
    traits.n_embd       = llama_model_n_embd(model);
    traits.n_layer      = llama_model_n_layer(model);
    traits.tokens.resize((size_t) std::max(0, llama_vocab_n_tokens(vocab)));
    // llama.cpp ends the process when a model without a vocabulary is asked for a text
    const bool has_texts = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
    for (size_t i = 0; has_texts && i < traits.tokens.size(); ++i) {
        const char * text = llama_vocab_get_text(vocab, (llama_token) i);
        traits.tokens[i]  = text ? text : "";
    }
    return traits;
}

target_traits target_traits::of_file(const std::string & path) {
    require_bound();
    const gguf_file file(path);
    target_traits   traits;
    traits.architecture = file.get_str("general.architecture");
    traits.n_embd       = (int32_t) std::min<uint32_t>(file.get_u32(traits.architecture + ".embedding_length"), INT32_MAX);
    traits.n_layer      = (int32_t) std::min<uint32_t>(file.get_u32(traits.architecture + ".block_count"), INT32_MAX);
    traits.tokens       = file.get_str_array("tokenizer.ggml.tokens");
    return traits;
}

void draft_model::check_target(const target_traits & target) const {
    const int32_t n_vocab  = (int32_t) target.tokens.size();
    auto          mismatch = [&](const std::string & what) {
        fail(DSPARK_ERROR_MISMATCH, format("the draft \"%s\" does not belong to this %s target: %s", path.c_str(), target.architecture.c_str(), what.c_str()));
    };

    if (hp.n_embd != target.n_embd) {
        mismatch(format("its hidden size is %d, the target's %d", hp.n_embd, target.n_embd));
    }
    for (int32_t id : hp.target_layers) {
        if (id > target.n_layer) {
            mismatch(format("it taps the input of layer %d, the target has layers 0 to %d", id, target.n_layer - 1));
        }
    }
    if (hp.n_vocab && hp.n_vocab != n_vocab) {
        mismatch(format("its vocabulary has %d tokens, the target's %d", hp.n_vocab, n_vocab));
    }
    if (hp.mask_token_id >= n_vocab) {
        mismatch(format("its mask token is %d, the target's vocabulary has %d tokens", hp.mask_token_id, n_vocab));
    }
    for (size_t i = 0; i < d2t_ids.size(); ++i) {
        if (d2t_ids[i] >= n_vocab) {
            mismatch(format("its d2t[%zu] is %d, the target's vocabulary has %d tokens", i, d2t_ids[i], n_vocab));
        }
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        // llama.cpp gives empty tokens a text of its own
        if (tokens[i] != target.tokens[i] && !tokens[i].empty()) {
            mismatch(format("its token %zu is \"%s\", the target's is \"%s\"", i, tokens[i].c_str(), target.tokens[i].c_str()));
        }
    }
}

} // namespace dspark
