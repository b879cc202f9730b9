// write_seeds FOLDER: the seed corpus, FOLDER/<target>/<seed>, made of the toys: nothing of it needs to be in the repository.
#include "fuzz_target.h"

#include "snapshot.h"

#include <filesystem>
#include <random>

static std::string folder;

static void write(const std::string & target, const std::string & name, const std::vector<uint8_t> & bytes) {
    std::filesystem::create_directories(folder + "/" + target);
    toy::write_file(folder + "/" + target + "/" + name, bytes);
}

static void write_drafts() {
    for (const char * markov : {"", "vanilla", "gated", "rnn"}) {
        for (bool extras : {false, true}) {
            toy::draft_options o = fuzz::small_draft();
            o.markov             = *markov ? markov : nullptr;
            o.confidence         = *markov ? 2 : 1;
            o.extras = o.shared_kv = extras;
            o.anchor_first       = !extras;
            toy::gguf g          = toy::make_draft(o);
            if (extras) {
                g.set_str("dflash.rope.scaling.type", "yarn");
                g.set_f32("dflash.rope.scaling.factor", 4.0f);
                g.set_u32("dflash.rope.scaling.original_context_length", 64);
                g.set_str("dflash.hidden_activation", "gelu_pytorch_tanh");
                g.set_str("dflash.attention.window_origin", "anchor");
            } else {
                std::vector<std::string> tokens;
                for (int i = 0; i < o.V; ++i) {
                    tokens.push_back(std::string(1, (char) ('a' + i)));
                }
                g.set_strs("tokenizer.ggml.tokens", tokens);
            }
            write("draft", std::string("small-") + (*markov ? markov : "none") + (extras ? "-extras" : ""), g.bytes());
        }
    }
    toy::draft_options borrowed = fuzz::small_draft();
    borrowed.own_embd = borrowed.own_output = false;
    borrowed.Vd                             = borrowed.V;
    write("draft", "small-borrowed", toy::make_draft(borrowed).bytes());
}

static void write_saved() {
    for (bool with_draft : {false, true}) {
        fuzz::pair &          pair = fuzz::pair::get();
        dspark_session *      s    = nullptr;
        dspark_session_params params;
        dspark_session_params_init(&params);
        params.draft.n_threads = 1;
        ASSERT_OK(dspark_session_create(pair.ctx, with_draft ? pair.draft : nullptr, &params, &s));
        const int32_t prompt[] = {1, 17, 42, 9, 33};
        for (int32_t n : {5, 1, 0}) { // 0: nothing held, so no pointers
            int32_t   done = 0;
            uint8_t * data = nullptr;
            size_t    size = 0;
            ASSERT_OK(dspark_session_rewind(s, 0));
            ASSERT(n == 0 || dspark_session_append(s, prompt, n, &done) == DSPARK_OK);
            ASSERT_OK(dspark_session_save(s, &data, &size));
            // with its own header, and as the payload that is given one
            std::vector<uint8_t> whole(data, data + size), payload(data + 32, data + size);
            dspark_saved_free(data);
            whole.insert(whole.begin(), 0);
            payload.insert(payload.begin(), 1);
            const std::string name = (with_draft ? "draft-" : "plain-") + std::to_string(n);
            write("saved", name, whole);
            write("saved", name + "-payload", payload);
        }
        dspark_session_free(s);
    }
}

static void write_calls() {
    std::mt19937 random(7);
    for (int i = 0; i < 40; ++i) {
        std::vector<uint8_t> calls = {6, 200, 200, 200};
        for (int k = 0; k < 300; ++k) {
            // large bytes mean "as it should be"
            calls.push_back((uint8_t) (random() % 3 ? 17 + random() % 239 : random()));
        }
        write("capi", "calls-" + std::to_string(i), calls);
    }
}

int main(int argc, char ** argv) {
    ASSERT(argc == 2);
    folder = argv[1];
    write_drafts();
    write_saved();
    write_calls();
    return 0;
}
