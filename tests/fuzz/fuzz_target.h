// A tiny target and draft for the fuzz targets that drive sessions.
#pragma once

#include "fuzz.h"

#include <unistd.h>

namespace fuzz {

// Loaded once for the life of the process.
struct pair {
    llama_model *    model = nullptr;
    llama_context *  ctx   = nullptr;
    dspark_draft *   draft = nullptr;

    static pair & get() {
        static pair loaded;
        return loaded;
    }

  private:
    pair() {
        toy::bind();
        const std::string path = "/tmp/dspark_fuzz." + std::to_string(getpid()) + ".gguf";
        toy::make_target(7, true).save(path);
        llama_model_params model_params = toy::llama().llama_model_default_params();
        model_params.n_gpu_layers       = 0;
        model_params.load_mode          = LLAMA_LOAD_MODE_NONE;
        model                           = toy::llama().llama_model_load_from_file(path.c_str(), model_params);
        ASSERT(model);
        toy::make_draft().save(path);
        ASSERT_OK(dspark_draft_load(path.c_str(), nullptr, &draft));
        remove(path.c_str());

        llama_context_params params = toy::llama().llama_context_default_params();
        params.n_ctx                = 64;
        params.n_batch              = 16;
        params.n_ubatch             = 16;
        params.n_threads            = 1;
        params.n_threads_batch      = 1;
        ctx                         = toy::llama().llama_init_from_model(model, params);
        ASSERT(ctx);
    }

    ~pair() {
        dspark_draft_free(draft);
        toy::llama().llama_free(ctx);
        toy::llama().llama_model_free(model);
    }
};

} // namespace fuzz
