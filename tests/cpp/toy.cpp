#include "toy.h"

#include "test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <dlfcn.h>

namespace toy {

namespace {

template <typename T> void put(std::vector<uint8_t> & to, T value) {
    uint8_t raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    to.insert(to.end(), raw, raw + sizeof(T));
}

void put_str(std::vector<uint8_t> & to, const std::string & text) {
    put<uint64_t>(to, text.size());
    to.insert(to.end(), text.begin(), text.end());
}

void put_array(std::vector<uint8_t> & to, int32_t type, size_t n) {
    put<int32_t>(to, GGUF_TYPE_ARRAY);
    put<int32_t>(to, type);
    put<uint64_t>(to, n);
}

void pad(std::vector<uint8_t> & to, size_t alignment) {
    while (to.size() % alignment) {
        to.push_back(0);
    }
}

} // namespace

// --- GGUF -------------------------------------------------------------------------------------------------------------

gguf::key & gguf::slot(const std::string & name) {
    for (key & k : keys) {
        if (k.name == name) {
            k.value.clear();
            return k;
        }
    }
    keys.push_back({name, {}});
    return keys.back();
}

void gguf::set_u32(const std::string & name, uint32_t value) {
    auto & to = slot(name).value;
    put<int32_t>(to, GGUF_TYPE_UINT32);
    put(to, value);
}

void gguf::set_f32(const std::string & name, float value) {
    auto & to = slot(name).value;
    put<int32_t>(to, GGUF_TYPE_FLOAT32);
    put(to, value);
}

void gguf::set_bool(const std::string & name, bool value) {
    auto & to = slot(name).value;
    put<int32_t>(to, GGUF_TYPE_BOOL);
    put<int8_t>(to, value);
}

void gguf::set_str(const std::string & name, const std::string & value) {
    auto & to = slot(name).value;
    put<int32_t>(to, GGUF_TYPE_STRING);
    put_str(to, value);
}

void gguf::set_i32s(const std::string & name, const std::vector<int32_t> & values) {
    auto & to = slot(name).value;
    put_array(to, GGUF_TYPE_INT32, values.size());
    for (int32_t value : values) {
        put(to, value);
    }
}

void gguf::set_bools(const std::string & name, const std::vector<bool> & values) {
    auto & to = slot(name).value;
    put_array(to, GGUF_TYPE_BOOL, values.size());
    for (bool value : values) {
        put<int8_t>(to, value);
    }
}

void gguf::set_strs(const std::string & name, const std::vector<std::string> & values) {
    auto & to = slot(name).value;
    put_array(to, GGUF_TYPE_STRING, values.size());
    for (const std::string & value : values) {
        put_str(to, value);
    }
}

void gguf::remove_key(const std::string & name) {
    keys.erase(std::remove_if(keys.begin(), keys.end(), [&](const key & k) { return k.name == name; }), keys.end());
}

void gguf::add(const std::string & name, std::vector<int64_t> ne, const std::vector<float> & values) {
    size_t n = 1;
    for (int64_t dim : ne) {
        n *= (size_t) dim;
    }
    ASSERT(n == values.size());
    tensor t = {name, std::move(ne), GGML_TYPE_F32, std::vector<uint8_t>(n * sizeof(float))};
    std::memcpy(t.data.data(), values.data(), t.data.size());
    tensors.push_back(std::move(t));
}

void gguf::add_i64(const std::string & name, const std::vector<int64_t> & values) {
    tensor t = {name, {(int64_t) values.size()}, GGML_TYPE_I64, std::vector<uint8_t>(values.size() * sizeof(int64_t))};
    std::memcpy(t.data.data(), values.data(), t.data.size());
    tensors.push_back(std::move(t));
}

gguf::tensor & gguf::at(const std::string & name) {
    for (tensor & t : tensors) {
        if (t.name == name) {
            return t;
        }
    }
    ASSERT(!"the toy has a tensor of that name");
    return tensors[0];
}

void gguf::remove_tensor(const std::string & name) {
    tensors.erase(std::remove_if(tensors.begin(), tensors.end(), [&](const tensor & t) { return t.name == name; }), tensors.end());
}

std::vector<uint8_t> gguf::bytes(size_t * out_header) const {
    const size_t         alignment = 32;
    std::vector<uint8_t> out       = {'G', 'G', 'U', 'F'};
    put<uint32_t>(out, 3);
    put<int64_t>(out, (int64_t) tensors.size());
    put<int64_t>(out, (int64_t) keys.size());
    for (const key & k : keys) {
        put_str(out, k.name);
        out.insert(out.end(), k.value.begin(), k.value.end());
    }
    size_t offset = 0;
    for (const tensor & t : tensors) {
        put_str(out, t.name);
        put<uint32_t>(out, (uint32_t) t.ne.size());
        for (int64_t dim : t.ne) {
            put(out, dim);
        }
        put(out, t.type);
        put<uint64_t>(out, offset);
        offset += (t.data.size() + alignment - 1) / alignment * alignment;
    }
    pad(out, alignment);
    if (out_header) {
        *out_header = out.size();
    }
    for (const tensor & t : tensors) {
        out.insert(out.end(), t.data.begin(), t.data.end());
        pad(out, alignment);
    }
    return out;
}

void gguf::save(const std::string & path) const {
    write_file(path, bytes());
}

void write_file(const std::string & path, const std::vector<uint8_t> & bytes) {
    FILE * file = fopen(path.c_str(), "wb");
    ASSERT(file);
    ASSERT(bytes.empty() || fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    ASSERT(fclose(file) == 0);
}

// --- models -----------------------------------------------------------------------------------------------------------

std::vector<float> random_values(size_t n, uint32_t seed) {
    std::mt19937       bits(seed);
    std::vector<float> values(n);
    for (float & value : values) {
        value = (float) ((double) bits() / 2147483648.0 - 1.0);
    }
    return values;
}

namespace {

// Draws the tensors of one model.
struct painter {
    gguf &   to;
    uint32_t seed;

    // {columns, rows}, of about unit gain
    void matrix(const std::string & name, int columns, int rows, float gain = 1.0f) {
        std::vector<float> values = random_values((size_t) columns * (size_t) rows, ++seed);
        const float        scale  = gain * std::sqrt(3.0f / (float) columns);
        for (float & value : values) {
            value *= scale;
        }
        to.add(name, {columns, rows}, values);
    }

    void vector(const std::string & name, int n, float centre, float spread) {
        std::vector<float> values = random_values((size_t) n, ++seed);
        for (float & value : values) {
            value = centre + spread * value;
        }
        to.add(name, {n}, values);
    }

    void norm(const std::string & name, int n) { vector(name, n, 1.0f, 0.3f); }
};

std::string blk(int il, const char * name) {
    return "blk." + std::to_string(il) + "." + name;
}

} // namespace

gguf make_draft(const draft_options & o) {
    gguf g;
    g.set_str("general.architecture", "dflash");
    g.set_str("general.name", "toy");
    g.set_u32("dflash.block_count", (uint32_t) o.L);
    g.set_u32("dflash.context_length", 4096);
    g.set_u32("dflash.embedding_length", (uint32_t) o.H);
    g.set_u32("dflash.feed_forward_length", (uint32_t) o.F);
    g.set_u32("dflash.attention.head_count", (uint32_t) o.nq);
    g.set_u32("dflash.attention.head_count_kv", (uint32_t) o.nkv);
    g.set_u32("dflash.attention.key_length", (uint32_t) o.d);
    g.set_f32("dflash.attention.layer_norm_rms_epsilon", 1e-6f);
    g.set_f32("dflash.rope.freq_base", 10000.0f);
    g.set_u32("dflash.block_size", (uint32_t) o.B);
    g.set_i32s("dflash.target_layers", o.target_layers);
    g.set_bool("dflash.sample_from_anchor", o.anchor_first);
    g.set_u32("tokenizer.ggml.mask_token_id", (uint32_t) o.V - 1);
    if (o.markov) {
        g.set_str("dflash.markov_head_type", o.markov);
    }
    if (o.confidence) {
        g.set_bool("dflash.has_confidence_head", true);
    }
    if (o.extras) {
        std::vector<bool> swa((size_t) o.L), causal((size_t) o.L);
        swa[0]    = true;
        causal[1] = true;
        g.set_u32("dflash.attention.sliding_window", 12);
        g.set_bools("dflash.attention.sliding_window_pattern", swa);
        g.set_bools("dflash.attention.causal_pattern", causal);
        g.set_f32("dflash.final_logit_softcapping", 20.0f);
    }

    painter   p  = {g, o.seed * 1000};
    const int dq = o.nq * o.d, dk = o.nkv * o.d;
    const int m  = (int) o.target_layers.size();
    if (o.own_embd) {
        p.matrix("token_embd.weight", o.H, o.V, std::sqrt((float) o.H));
    }
    if (o.own_output) {
        p.matrix("output.weight", o.H, o.Vd, 2.0f);
    }
    if (o.Vd != o.V) {
        std::vector<int64_t> d2t((size_t) o.Vd); // scattered over the vocabulary: a permutation's beginning
        for (int i = 0; i < o.Vd; ++i) {
            d2t[(size_t) i] = (i * 37 + 5) % o.V;
        }
        g.add_i64("d2t", d2t);
    }
    p.norm("output_norm.weight", o.H);
    p.matrix("fc.weight", m * o.H, o.H);
    p.norm("enc.output_norm.weight", o.H);
    for (int il = 0; il < o.L; ++il) {
        p.norm(blk(il, "attn_norm.weight"), o.H);
        p.matrix(blk(il, "attn_q.weight"), o.H, dq);
        p.matrix(blk(il, "attn_k.weight"), o.H, dk);
        if (!o.shared_kv) {
            p.matrix(blk(il, "attn_v.weight"), o.H, dk);
        }
        p.matrix(blk(il, "attn_output.weight"), dq, o.H);
        p.norm(blk(il, "attn_q_norm.weight"), o.d);
        p.norm(blk(il, "attn_k_norm.weight"), o.d);
        p.norm(blk(il, "ffn_norm.weight"), o.H);
        p.matrix(blk(il, "ffn_gate.weight"), o.H, o.F);
        p.matrix(blk(il, "ffn_up.weight"), o.H, o.F);
        p.matrix(blk(il, "ffn_down.weight"), o.F, o.H);
        if (o.extras) {
            p.vector(blk(il, "attn_sinks.weight"), o.nq, 0.0f, 1.0f);
            p.norm(blk(il, "post_attention_norm.weight"), o.H);
            p.norm(blk(il, "post_ffw_norm.weight"), o.H);
            p.norm(blk(il, "layer_output_scale.weight"), 1);
        }
    }
    const std::string markov = o.markov ? o.markov : "";
    if (o.markov) {
        p.matrix("markov_w1.weight", o.R, o.V, std::sqrt((float) o.R));
        p.matrix("markov_w2.weight", o.R, o.Vd, 1.5f);
    }
    if (markov == "gated") {
        p.matrix("markov_gate.weight", o.H + o.R, o.R);
        p.vector("markov_gate.bias", o.R, 0.0f, 0.5f);
    }
    if (markov == "rnn") {
        p.matrix("markov_joint.weight", 2 * o.R + o.H, 3 * o.R);
        p.vector("markov_joint.bias", 3 * o.R, 0.0f, 0.5f);
    }
    if (o.confidence) {
        p.matrix("conf_proj.weight", o.confidence == 2 ? o.H + o.R : o.H, 1);
        p.vector("conf_proj.bias", 1, 0.0f, 0.5f);
    }
    return g;
}

gguf make_target(uint32_t seed, bool has_tokens) {
    const int H = 32, L = 2, F = 64, nq = 4, nkv = 2, d = 8, V = 64;
    gguf      g;
    g.set_str("general.architecture", "llama");
    g.set_u32("llama.block_count", L);
    g.set_u32("llama.context_length", 4096);
    g.set_u32("llama.embedding_length", H);
    g.set_u32("llama.feed_forward_length", F);
    g.set_u32("llama.attention.head_count", nq);
    g.set_u32("llama.attention.head_count_kv", nkv);
    g.set_u32("llama.rope.dimension_count", d);
    g.set_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    g.set_u32("llama.vocab_size", V);
    if (has_tokens) {
        std::vector<std::string> tokens;
        std::vector<int32_t>     types(V, 1);
        for (int i = 0; i < V; ++i) {
            tokens.push_back("t" + std::to_string(i));
        }
        g.set_str("tokenizer.ggml.model", "gpt2");
        g.set_str("tokenizer.ggml.pre", "default");
        g.set_strs("tokenizer.ggml.tokens", tokens);
        g.set_i32s("tokenizer.ggml.token_type", types);
        g.set_strs("tokenizer.ggml.merges", {"t 0"});
    } else {
        g.set_str("tokenizer.ggml.model", "no_vocab");
    }

    painter p = {g, seed * 1000};
    p.matrix("token_embd.weight", H, V, std::sqrt((float) H));
    p.norm("output_norm.weight", H);
    p.matrix("output.weight", H, V, 2.0f);
    for (int il = 0; il < L; ++il) {
        p.norm(blk(il, "attn_norm.weight"), H);
        p.matrix(blk(il, "attn_q.weight"), H, nq * d, 2.0f);
        p.matrix(blk(il, "attn_k.weight"), H, nkv * d, 2.0f);
        p.matrix(blk(il, "attn_v.weight"), H, nkv * d, 2.0f);
        p.matrix(blk(il, "attn_output.weight"), nq * d, H, 2.0f);
        p.norm(blk(il, "ffn_norm.weight"), H);
        p.matrix(blk(il, "ffn_gate.weight"), H, F, 2.0f);
        p.matrix(blk(il, "ffn_up.weight"), H, F);
        p.matrix(blk(il, "ffn_down.weight"), F, H, 2.0f);
    }
    return g;
}

// --- libllama ---------------------------------------------------------------------------------------------------------

const llama_api & llama() {
    static const llama_api api = [] {
        llama_api filled;
        void *    handle = toy_open_libllama();
#define TOY_LOAD(name)                                                                                                \
    filled.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name));                                          \
    ASSERT(filled.name);
        TOY_LLAMA_FUNCTIONS(TOY_LOAD)
#undef TOY_LOAD
        return filled;
    }();
    return api;
}

void bind() {
    void * handle = toy_open_libllama();
    ASSERT_OK(dspark_bind(&handle, 1));
    llama();
}

} // namespace toy

extern "C" {

static void no_log(enum ggml_log_level, const char *, void *) {}

void * toy_open_libllama(void) {
    static void * const handle = [] {
        void * opened = dlopen(TOY_LIBLLAMA, RTLD_NOW | RTLD_LOCAL);
        if (!opened) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        for (const char * name : {"llama_log_set", "ggml_log_set"}) {
            reinterpret_cast<decltype(&::ggml_log_set)>(dlsym(opened, name))(getenv("TOY_LOG") ? nullptr : no_log, nullptr);
        }
        return opened;
    }();
    return handle;
}

void toy_write_draft(const char * path) {
    toy::make_draft().save(path);
}

void toy_write_target(const char * path) {
    toy::make_target().save(path);
}

} // extern "C"
