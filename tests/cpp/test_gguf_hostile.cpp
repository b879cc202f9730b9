// Draft files that are damaged, foreign or made to harm: each is refused with a sentence, or is a draft that runs.
//
// Stands for: a length or shape of the file that is trusted in an allocation, an index or a graph; a d2t entry that writes
// outside the vocabulary; a weight type that ggml has no kernel for and would end the process on; a check that one of the
// two ways in (load, inspect) lacks.
#include "test.h"
#include "toy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

// Thousands of files: in memory, where the system has a folder there.
static const std::string  folder  = access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : "";
static const std::string  name    = folder + "test_gguf_hostile." + std::to_string(getpid());
static const char * const path    = name.c_str();

// The case in progress, named before the process ends should ggml end it.
static char current_case[256];

static struct sigaction before[NSIG];

static void name_case(int signal_number) {
    char      text[320];
    const int n = snprintf(text, sizeof(text), "ended by signal %d in case: %s\n", signal_number, current_case);
    if (write(2, text, (size_t) n) != n) {
        _exit(3);
    }
    // whoever was to be told, the system or a sanitizer, is told now
    sigaction(signal_number, &before[signal_number], nullptr);
    raise(signal_number);
}

static int n_loaded, n_refused;

// Runs what has loaded: features in, a block out.
static void run(dspark_draft * draft) {
    dspark_draft_info info;
    info.struct_size = sizeof(info);
    ASSERT_OK(dspark_draft_get_info(draft, &info));
    ASSERT(info.n_draft_max >= 1 && info.n_target_layers >= 1);
    dspark_draft_context_params params;
    dspark_draft_context_params_init(&params);
    params.n_threads               = 1;
    dspark_draft_context * context = nullptr;
    const dspark_status    created = dspark_draft_context_create(draft, nullptr, &params, &context);
    if (created != DSPARK_OK) {
        // without its embedding or head it is a draft that borrows, and there is no target here
        ASSERT_STATUS(DSPARK_ERROR_MISMATCH, created);
        ASSERT(!info.has_token_embd || !info.has_output);
        ASSERT(!context);
        return;
    }
    const std::vector<float> features = toy::random_values((size_t) 6 * (size_t) info.n_target_layers * (size_t) info.n_embd, 3);
    ASSERT_OK(dspark_draft_context_append(context, features.data(), 6));
    dspark_draft_context_state state;
    state.struct_size = sizeof(state);
    ASSERT_OK(dspark_draft_context_get_state(context, &state));
    std::vector<float> logits((size_t) info.n_draft_max * (size_t) state.n_logits);
    dspark_proposal    proposal;
    ASSERT_OK(dspark_draft_context_propose(context, 1, info.n_draft_max, logits.data(), &proposal));
    ASSERT(proposal.n == info.n_draft_max && proposal.has_confidence == info.has_confidence);
    for (int32_t i = 0; i < proposal.n; ++i) {
        ASSERT(proposal.ids[i] >= 0 && (!info.n_vocab || proposal.ids[i] < info.n_vocab));
    }
    dspark_draft_context_free(context);
}

// The status of loading the file at `path`; what loads must run, and inspect must agree.
static dspark_status try_file() {
    dspark_draft *      draft     = reinterpret_cast<dspark_draft *>(1);
    dspark_draft *      inspected = reinterpret_cast<dspark_draft *>(1);
    const dspark_status status    = dspark_draft_load(path, nullptr, &draft);
    if (status == DSPARK_OK) {
        ++n_loaded;
        run(draft);
        dspark_draft_free(draft);
    } else {
        ++n_refused;
        ASSERT(draft == nullptr);
        ASSERT(status == DSPARK_ERROR_FILE || status == DSPARK_ERROR_FORMAT);
        ASSERT(strstr(dspark_last_error(), path));
    }
    ASSERT_STATUS(status, dspark_draft_inspect(path, &inspected));
    dspark_draft_free(inspected);
    return status;
}

static dspark_status try_gguf(const toy::gguf & g, const std::string & what) {
    snprintf(current_case, sizeof(current_case), "%s", what.c_str());
    g.save(path);
    return try_file();
}

static void expect_refused(const toy::gguf & g, const std::string & what, const char * said, dspark_status wanted = DSPARK_ERROR_FORMAT) {
    ASSERT_STATUS(wanted, try_gguf(g, what));
    if (!strstr(dspark_last_error(), said)) {
        fprintf(stderr, "%s: \"%s\" does not say \"%s\"\n", what.c_str(), dspark_last_error(), said);
        exit(1);
    }
}

static std::vector<std::pair<std::string, toy::draft_options>> kinds() {
    toy::draft_options vanilla, gated, rnn, plain, extras, borrowed;
    gated.markov        = "gated";
    gated.Vd            = gated.V;
    rnn.markov          = "rnn";
    rnn.anchor_first    = false;
    plain.markov        = nullptr;
    plain.confidence    = 1;
    extras.extras       = true;
    extras.shared_kv    = true;
    borrowed.own_embd   = false;
    borrowed.own_output = false;
    borrowed.Vd         = borrowed.V;
    return {{"vanilla", vanilla}, {"gated", gated}, {"rnn", rnn}, {"plain", plain}, {"extras", extras}, {"borrowed", borrowed}};
}

static void test_good_files() {
    for (const auto & [kind, options] : kinds()) {
        ASSERT_OK(try_gguf(toy::make_draft(options), kind));
    }
}

static void test_truncation() {
    size_t                     n_header = 0;
    const std::vector<uint8_t> bytes    = toy::make_draft().bytes(&n_header);
    toy::write_file(path, bytes);
    // from the end, so that the file is written once; the last tensor's padding is not missed
    size_t n_data = bytes.size();
    for (size_t n = (bytes.size() - 32) / 97 * 97;; n -= 97) {
        snprintf(current_case, sizeof(current_case), "truncated to %zu of %zu bytes", n, n_data);
        ASSERT(truncate(path, (off_t) n) == 0);
        const dspark_status status = try_file();
        ASSERT(status == DSPARK_ERROR_FILE || status == DSPARK_ERROR_FORMAT);
        ASSERT(n < n_header || status == DSPARK_ERROR_FILE);
        if (n < 97) {
            break;
        }
    }
    for (size_t n = 0; n < 32; ++n) {
        snprintf(current_case, sizeof(current_case), "truncated to %zu bytes", n);
        toy::write_file(path, std::vector<uint8_t>(bytes.begin(), bytes.begin() + (ptrdiff_t) n));
        ASSERT(try_file() != DSPARK_OK);
    }
}

// Each key away; then each as every other type, and as an array.
static void test_keys() {
    for (const auto & [kind, options] : kinds()) {
        const toy::gguf good = toy::make_draft(options);
        for (const toy::gguf::key & key : good.keys) {
            toy::gguf g = good;
            g.remove_key(key.name);
            const dspark_status status = try_gguf(g, kind + " without key " + key.name);
            // whatever the draft cannot be without
            const bool required = key.name == "general.architecture" || key.name == "dflash.block_count" || key.name == "dflash.context_length" ||
                                  key.name == "dflash.embedding_length" || key.name == "dflash.feed_forward_length" ||
                                  key.name == "dflash.attention.head_count" || key.name == "dflash.attention.head_count_kv" ||
                                  key.name == "dflash.attention.layer_norm_rms_epsilon" || key.name == "dflash.block_size" ||
                                  key.name == "dflash.target_layers" || key.name == "tokenizer.ggml.mask_token_id";
            if (required) {
                ASSERT_STATUS(DSPARK_ERROR_FORMAT, status);
                ASSERT(strstr(dspark_last_error(), key.name.c_str()));
            }

            const auto retype = [&](const char * type, void (*set)(toy::gguf &, const std::string &)) {
                toy::gguf other = good;
                set(other, key.name);
                try_gguf(other, kind + " with " + type + " as key " + key.name);
            };
            retype("u32 0", [](toy::gguf & to, const std::string & key_name) { to.set_u32(key_name, 0); });
            retype("u32 max", [](toy::gguf & to, const std::string & key_name) { to.set_u32(key_name, UINT32_MAX); });
            retype("u32 int max", [](toy::gguf & to, const std::string & key_name) { to.set_u32(key_name, INT32_MAX); });
            retype("u32 255", [](toy::gguf & to, const std::string & key_name) { to.set_u32(key_name, 255); });
            retype("f32", [](toy::gguf & to, const std::string & key_name) { to.set_f32(key_name, 0.5f); });
            retype("f32 nan", [](toy::gguf & to, const std::string & key_name) { to.set_f32(key_name, NAN); });
            retype("f32 -inf", [](toy::gguf & to, const std::string & key_name) { to.set_f32(key_name, -INFINITY); });
            retype("f32 max", [](toy::gguf & to, const std::string & key_name) { to.set_f32(key_name, 3e38f); });
            retype("f32 -max", [](toy::gguf & to, const std::string & key_name) { to.set_f32(key_name, -3e38f); });
            retype("f32 tiny", [](toy::gguf & to, const std::string & key_name) { to.set_f32(key_name, 1e-45f); });
            retype("bool", [](toy::gguf & to, const std::string & key_name) { to.set_bool(key_name, true); });
            retype("string", [](toy::gguf & to, const std::string & key_name) { to.set_str(key_name, "dflash"); });
            retype("empty string", [](toy::gguf & to, const std::string & key_name) { to.set_str(key_name, ""); });
            retype("no ids", [](toy::gguf & to, const std::string & key_name) { to.set_i32s(key_name, {}); });
            retype("ids", [](toy::gguf & to, const std::string & key_name) { to.set_i32s(key_name, {0, 1}); });
            retype("wild ids", [](toy::gguf & to, const std::string & key_name) { to.set_i32s(key_name, {-1, INT32_MAX}); });
            retype("a thousand ids", [](toy::gguf & to, const std::string & key_name) { to.set_i32s(key_name, std::vector<int32_t>(1000, 0)); });
            retype("bools", [](toy::gguf & to, const std::string & key_name) { to.set_bools(key_name, {true, false}); });
            retype("strings", [](toy::gguf & to, const std::string & key_name) { to.set_strs(key_name, {"a", "b"}); });
        }
        for (const char * added : {"dflash.attention.scale", "dflash.attention.value_scale", "dflash.embedding_scale", "dflash.logit_scale",
                                   "dflash.final_logit_softcapping", "dflash.rope.freq_base", "dflash.rope.scaling.factor"}) {
            for (float value : {0.0f, -1.0f, 1e-45f, 1e-20f, 3e38f, -3e38f, NAN, INFINITY}) {
                toy::gguf g = good;
                g.set_f32(added, value);
                g.set_str("dflash.rope.scaling.type", "linear");
                try_gguf(g, kind + " with " + added + " = " + std::to_string(value));
                g.set_str("dflash.rope.scaling.type", "yarn");
                g.set_u32("dflash.rope.scaling.original_context_length", 2048);
                try_gguf(g, kind + " with yarn and " + added + " = " + std::to_string(value));
            }
        }
        for (uint32_t window : {1u, 2u, 5u, 256u, (uint32_t) INT32_MAX, UINT32_MAX}) {
            for (const char * origin : {"query", "anchor", "elsewhere"}) {
                toy::gguf g = good;
                g.set_u32("dflash.attention.sliding_window", window);
                g.set_bools("dflash.attention.sliding_window_pattern", {true, false});
                g.set_str("dflash.attention.window_origin", origin);
                const dspark_status status = try_gguf(g, kind + " with window " + std::to_string(window) + " from " + origin);
                ASSERT((status == DSPARK_OK) == (std::string(origin) != "elsewhere"));
            }
        }
    }
}

// Keys that a draft may have, each with values that would have the graph read past its tensors.
static void test_optional_keys() {
    const toy::gguf good = toy::make_draft();
    for (uint32_t n_rot : {0u, 1u, 3u, 9u, 10u, 64u, UINT32_MAX}) {
        toy::gguf g = good;
        g.set_u32("dflash.rope.dimension_count", n_rot);
        expect_refused(g, "rope over " + std::to_string(n_rot) + " of 8", "dflash.rope.dimension_count");
    }
    for (uint32_t n_rot : {2u, 4u, 8u}) {
        toy::gguf g = good;
        g.set_u32("dflash.rope.dimension_count", n_rot);
        ASSERT_OK(try_gguf(g, "partial rope"));
    }
    for (size_t n : {0, 1, 3, 1000}) {
        toy::gguf g = good;
        g.set_bools("dflash.attention.causal_pattern", std::vector<bool>(n, true));
        expect_refused(g, "causal pattern of another length", "causal_pattern");
        g = good;
        g.set_u32("dflash.attention.sliding_window", 8);
        g.set_bools("dflash.attention.sliding_window_pattern", std::vector<bool>(n, true));
        expect_refused(g, "window pattern of another length", "sliding_window_pattern");
    }
    toy::gguf g = good;
    g.set_u32("dflash.attention.sliding_window", 8);
    expect_refused(g, "a window without its pattern", "sliding_window_pattern");
    g = good;
    g.set_u32("dflash.attention.value_length", 16);
    expect_refused(g, "V wider than K", "dflash.attention.value_length");
    toy::draft_options uneven; // query heads that do not share the others evenly
    uneven.nkv = 3;
    expect_refused(toy::make_draft(uneven), "4 heads on 3", "multiple");
    uneven.nkv = 8;
    expect_refused(toy::make_draft(uneven), "4 heads on 8", "multiple");
    toy::draft_options odd;
    odd.d = 7;
    expect_refused(toy::make_draft(odd), "heads of 7", "even");
    for (uint32_t n : {1u, 2u, 64u, 128u}) { // more than anybody trains
        toy::gguf large = good;
        large.set_u32("dflash.block_size", n);
        ASSERT_OK(try_gguf(large, "a block of " + std::to_string(n)));
    }
}

static void test_tensors() {
    for (const auto & [kind, options] : kinds()) {
        const toy::gguf good = toy::make_draft(options);
        for (size_t i = 0; i < good.tensors.size(); ++i) {
            const toy::gguf::tensor & t    = good.tensors[i];
            const std::string         what = kind + ", tensor " + t.name + " ";

            toy::gguf g = good;
            g.remove_tensor(t.name);
            try_gguf(g, what + "dropped");

            g                 = good;
            g.tensors[i].name = "x" + t.name;
            // V projections may be left out, but in all layers together
            expect_refused(g, what + "renamed", t.name.find("attn_v") != std::string::npos ? "attn_v.weight" : t.name.c_str());

            g                 = good;
            g.tensors[i].name = std::string(63, 'n');
            expect_refused(g, what + "with a long name", "");
            g.tensors[i].name = std::string(64, 'n');
            expect_refused(g, what + "with too long a name", "");
            g.tensors[i].name = "";
            expect_refused(g, what + "without a name", "");
            g.tensors[i].name = t.name + std::string("\0x", 2); // the same name, to C
            try_gguf(g, what + "with a zero in its name");
            g.tensors[i].name = "a\n\x1b[31m\xff%s%n";
            expect_refused(g, what + "with an odd name", "");

            g = good;
            g.tensors.push_back(t);
            expect_refused(g, what + "twice", "");

            // one number more or less in each dimension, with the data to match, then without
            for (size_t dim = 0; dim < 4; ++dim) {
                for (int64_t change : {-1, 1}) {
                    toy::gguf::tensor other = t;
                    other.ne.resize(std::max(other.ne.size(), dim + 1), 1);
                    other.ne[dim] += change;
                    const size_t element = t.type == GGML_TYPE_I64 ? 8 : 4;
                    size_t       n       = element;
                    for (int64_t ne : other.ne) {
                        n *= (size_t) ne;
                    }
                    other.data.assign(n, 0);
                    g            = good;
                    g.tensors[i] = other;
                    // a 1 more in the vocabulary of the only tensor that tells it is another draft
                    if (kind != "borrowed" && kind != "plain") {
                        ASSERT(try_gguf(g, what + "reshaped in dimension " + std::to_string(dim)) != DSPARK_OK);
                    } else {
                        try_gguf(g, what + "reshaped in dimension " + std::to_string(dim));
                    }
                }
            }
            for (int64_t wild : {(int64_t) 0, (int64_t) -1, INT64_MAX, INT64_MIN, (int64_t) 1 << 31, (int64_t) 1 << 32, (int64_t) 1 << 62}) {
                for (size_t dim = 0; dim < 4; ++dim) {
                    g = good;
                    g.tensors[i].ne.resize(std::max(t.ne.size(), dim + 1), 1);
                    g.tensors[i].ne[dim] = wild;
                    ASSERT(try_gguf(g, what + "with dimension " + std::to_string(wild)) != DSPARK_OK);
                }
            }
            g = good;
            g.tensors[i].ne.assign(5, 1);
            expect_refused(g, what + "of five dimensions", "");
            g.tensors[i].ne.clear();
            if (t.data.size() > 4) { // a single number may be written without dimensions
                expect_refused(g, what + "of no dimensions", "");
            }

            for (int32_t type : {-1, 4, 5, 31, 1000, INT32_MAX, INT32_MIN, (int32_t) GGML_TYPE_COUNT}) {
                g                 = good;
                g.tensors[i].type = type;
                expect_refused(g, what + "of no type", "");
            }
        }
    }
}

// Every type ggml knows, where a draft has a matrix: it is refused, or it runs.
static void test_types() {
    toy::draft_options wide; // rows that fit every quantisation
    wide.H = wide.F = wide.R = 256;
    wide.d                   = 64;
    wide.L                   = 1;
    const auto & ggml        = toy::llama();
    for (const char * tensor : {"fc.weight", "token_embd.weight", "output.weight", "markov_w1.weight", "markov_w2.weight", "blk.0.attn_k.weight",
                              "blk.0.attn_norm.weight", "blk.0.attn_q_norm.weight", "conf_proj.weight", "conf_proj.bias", "d2t"}) {
        const toy::gguf good = toy::make_draft(wide);
        for (int32_t type = 0; type < (int32_t) GGML_TYPE_COUNT; ++type) {
            const int64_t block = ggml.ggml_blck_size((ggml_type) type);
            toy::gguf     g     = good;
            auto &        t     = g.at(tensor);
            if (block == 0 || t.ne[0] % block != 0) {
                continue;
            }
            const bool is_same = t.type == type;
            t.type             = type;
            if (!is_same) {
                size_t n = ggml.ggml_type_size((ggml_type) type);
                n *= (size_t) (t.ne[0] / block) * (t.ne.size() > 1 ? (size_t) t.ne[1] : 1);
                t.data.assign(n, 0);
            }
            const dspark_status status = try_gguf(g, std::string(tensor) + " as " + ggml.ggml_type_name((ggml_type) type));
            ASSERT(!is_same || status == DSPARK_OK);
            const bool is_plain = std::string(tensor).find("norm") != std::string::npos || std::string(tensor).find("bias") != std::string::npos;
            ASSERT(is_same || !is_plain || status == DSPARK_ERROR_FORMAT);
            ASSERT(is_same || std::string(tensor) != "d2t" || status == DSPARK_ERROR_FORMAT);
        }
    }
}

static void test_d2t() {
    toy::gguf  good   = toy::make_draft();
    const auto change = [&](size_t i, int64_t value) {
        toy::gguf g = good;
        std::memcpy(g.at("d2t").data.data() + 8 * i, &value, 8);
        return g;
    };
    for (size_t i : {(size_t) 0, (size_t) 20, (size_t) 47}) {
        const std::string where = "d2t[" + std::to_string(i) + "]";
        for (int64_t value : {(int64_t) -1, (int64_t) 64, (int64_t) INT32_MAX, (int64_t) INT32_MAX + 1, ((int64_t) 1 << 32) + 1, INT64_MIN, INT64_MAX}) {
            expect_refused(change(i, value), where + " = " + std::to_string(value), (where + " is " + std::to_string(value)).c_str());
        }
        int64_t other;
        std::memcpy(&other, good.at("d2t").data.data() + 8 * (i ? i - 1 : 1), 8);
        expect_refused(change(i, other), where + " twice", "earlier row");
    }
    // offsets, as a checkpoint holds them, instead of ids
    toy::gguf offsets = good;
    std::fill(offsets.at("d2t").data.begin(), offsets.at("d2t").data.end(), (uint8_t) 0);
    expect_refused(offsets, "d2t of offsets", "absolute");
    toy::gguf scalar = good;
    scalar.at("d2t").ne = {1, 48};
    ASSERT(try_gguf(scalar, "d2t of one row") != DSPARK_OK);
    // a larger id than the target has, where the file does not tell the vocabulary: refused when the target is known
}

static void test_token_table() {
    toy::gguf                g = toy::make_draft();
    std::vector<std::string> tokens(64, "t");
    g.set_strs("tokenizer.ggml.tokens", tokens);
    ASSERT_OK(try_gguf(g, "a token table"));
    tokens.push_back("one more");
    g.set_strs("tokenizer.ggml.tokens", tokens);
    expect_refused(g, "a token too many", "64");
    g.set_strs("tokenizer.ggml.tokens", {});
    try_gguf(g, "an empty token table");
    g.set_i32s("tokenizer.ggml.tokens", {1, 2});
    expect_refused(g, "a token table of numbers", "tokenizer.ggml.tokens");
}

// One byte or one number of the header changed, at random but the same on every machine.
static void test_header_flips(int n_flips) {
    for (const auto & [kind, options] : kinds()) {
        size_t                     n_header = 0;
        const std::vector<uint8_t> bytes    = toy::make_draft(options).bytes(&n_header);
        std::mt19937               bits(20260);
        toy::write_file(path, bytes);
        FILE * file = fopen(path, "r+b");
        ASSERT(file);
        for (int i = 0; i < n_flips; ++i) {
            const size_t at = bits() % (n_header - 8);
            uint8_t      raw[8];
            size_t       n = 1;
            std::memcpy(raw, bytes.data() + at, 8);
            if (i % 3 == 0) {
                raw[0] = (uint8_t) (raw[0] ^ (1u << (bits() % 8)));
            } else if (i % 3 == 1) {
                raw[0] = (uint8_t) bits();
            } else {
                const int64_t wild[] = {0, 1, -1, 255, INT32_MAX, INT32_MIN, (int64_t) UINT32_MAX, INT64_MAX, INT64_MIN, (int64_t) 1 << 40, 1 << 30, 1 << 20};
                const int64_t value  = wild[bits() % (sizeof(wild) / sizeof(*wild))];
                std::memcpy(raw, &value, 8);
                n = bits() % 2 ? 8 : 4;
            }
            snprintf(current_case, sizeof(current_case), "%s, flip %d: %zu bytes at %zu", kind.c_str(), i, n, at);
            ASSERT(fseek(file, (long) at, SEEK_SET) == 0 && fwrite(raw, 1, n, file) == n && fflush(file) == 0);
            try_file();
            ASSERT(fseek(file, (long) at, SEEK_SET) == 0 && fwrite(bytes.data() + at, 1, n, file) == n && fflush(file) == 0);
        }
        ASSERT(fclose(file) == 0);
        ASSERT_OK(try_gguf(toy::make_draft(options), "unharmed again"));
    }
}

// The target's file, of which only the header is read.
static void test_target_file(int n_flips) {
    const std::string          target_name = name + ".target";
    const char * const         target_path = target_name.c_str();
    size_t                     n_header    = 0;
    const toy::gguf            good        = toy::make_target(7, true);
    const std::vector<uint8_t> bytes       = good.bytes(&n_header);
    dspark_draft *             draft       = nullptr;
    toy::make_draft().save(path);
    ASSERT_OK(dspark_draft_load(path, nullptr, &draft));
    toy::write_file(target_path, bytes);
    ASSERT_OK(dspark_draft_check_target_file(draft, target_path));
    std::mt19937 bits(99);
    for (int i = 0; i < n_flips; ++i) {
        std::vector<uint8_t> harmed = bytes;
        const size_t         at     = bits() % (n_header - 8);
        if (i % 2) {
            harmed[at] = (uint8_t) bits();
        } else {
            const int64_t value = (int64_t) bits() - INT32_MAX;
            std::memcpy(harmed.data() + at, &value, bits() % 2 ? 8 : 4);
        }
        snprintf(current_case, sizeof(current_case), "target, flip %d at %zu", i, at);
        toy::write_file(target_path, harmed);
        const dspark_status status = dspark_draft_check_target_file(draft, target_path);
        ASSERT(status == DSPARK_OK || status == DSPARK_ERROR_FILE || status == DSPARK_ERROR_FORMAT || status == DSPARK_ERROR_MISMATCH);
    }
    for (const toy::gguf::key & key : good.keys) {
        toy::gguf g = good;
        g.remove_key(key.name);
        g.save(target_path);
        snprintf(current_case, sizeof(current_case), "target without key %s", key.name.c_str());
        const dspark_status status = dspark_draft_check_target_file(draft, target_path);
        ASSERT(status == DSPARK_OK || status == DSPARK_ERROR_FORMAT);
    }
    remove(target_path);
    dspark_draft_free(draft);
}

// Weights of any bits: NaN and infinity in, token ids of the vocabulary out.
static void test_wild_weights() {
    for (const auto & [kind, options] : kinds()) {
        toy::gguf    g = toy::make_draft(options);
        std::mt19937 bits(5);
        for (auto & t : g.tensors) {
            if (t.type == GGML_TYPE_F32) {
                for (uint8_t & byte : t.data) {
                    byte = (uint8_t) bits();
                }
            }
        }
        ASSERT_OK(try_gguf(g, kind + " with random bits as weights"));
        for (float value : {NAN, INFINITY, -INFINITY, 3e38f}) {
            for (auto & t : g.tensors) {
                for (size_t i = 0; t.type == GGML_TYPE_F32 && i < t.data.size(); i += 4) {
                    std::memcpy(t.data.data() + i, &value, 4);
                }
            }
            ASSERT_OK(try_gguf(g, kind + " with weights of " + std::to_string(value)));
        }
    }
}

int main() {
    toy::bind();
    for (int signal_number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS}) {
        struct sigaction action = {};
        action.sa_handler       = name_case;
        action.sa_flags         = SA_NODEFER;
        ASSERT(sigaction(signal_number, &action, &before[signal_number]) == 0);
    }
    test_good_files();
    test_truncation();
    test_keys();
    test_optional_keys();
    test_tensors();
    test_d2t();
    test_token_table();
    test_wild_weights();
    test_header_flips(1000);
    test_target_file(1000);
    test_types();
    remove(path);

    struct rusage usage;
    ASSERT(getrusage(RUSAGE_SELF, &usage) == 0);
    printf("%d files refused, %d loaded and run, %ld MiB at most\n", n_refused, n_loaded, usage.ru_maxrss / 1024);
    return 0;
}
