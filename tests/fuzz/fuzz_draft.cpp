// The input is a draft's file: it is refused with a sentence, or it is a draft that runs.  It is also taken for a target's file.
#include "fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

static int         file = -1; // in memory
static std::string path;

static void begin() {
    if (file < 0) {
        toy::bind();
        file = memfd_create("fuzz_draft", 0);
        ASSERT(file >= 0);
        path = "/proc/self/fd/" + std::to_string(file);
    }
}

static void run(dspark_draft * draft, const dspark_draft_info & info) {
    dspark_draft_context_params params;
    dspark_draft_context_params_init(&params);
    params.n_threads               = 1;
    dspark_draft_context * context = nullptr;
    const dspark_status    created = dspark_draft_context_create(draft, nullptr, &params, &context);
    if (created != DSPARK_OK) {
        // a head size that the cache's type does not suit, or a draft that borrows from a target which is not here
        ASSERT(!context && (created == DSPARK_ERROR_MISMATCH || created == DSPARK_ERROR_ARGUMENT));
        return;
    }
    const std::vector<float> features = toy::random_values((size_t) 6 * (size_t) info.n_target_layers * (size_t) info.n_embd, 3);
    ASSERT_OK(dspark_draft_context_append(context, features.data(), 6));
    dspark_proposal proposal;
    ASSERT_OK(dspark_draft_context_propose(context, 0, info.n_draft_max, nullptr, &proposal));
    ASSERT(proposal.n == info.n_draft_max);
    for (int32_t i = 0; i < proposal.n; ++i) {
        ASSERT(proposal.ids[i] >= 0 && (!info.n_vocab || proposal.ids[i] < info.n_vocab));
    }
    dspark_draft_context_free(context);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    begin();
    ASSERT(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t) size);
    dspark_draft *      draft     = nullptr;
    dspark_draft *      inspected = nullptr;
    const dspark_status status    = dspark_draft_load(path.c_str(), nullptr, &draft);
    ASSERT(status == DSPARK_OK || status == DSPARK_ERROR_FILE || status == DSPARK_ERROR_FORMAT);
    ASSERT((status == DSPARK_OK) == (draft != nullptr));
    if (status != DSPARK_OK) {
        ASSERT(strstr(dspark_last_error(), path.c_str()));
    }
    ASSERT_STATUS(status, dspark_draft_inspect(path.c_str(), &inspected));
    if (draft) {
        dspark_draft_info info;
        info.struct_size = sizeof(info);
        ASSERT_OK(dspark_draft_get_info(draft, &info));
        ASSERT(info.n_draft_max >= 1 && info.n_draft_max <= DSPARK_BLOCK_MAX && info.n_target_layers >= 1);
        run(draft, info);
        const dspark_status fits = dspark_draft_check_target_file(draft, path.c_str());
        ASSERT(fits == DSPARK_OK || fits == DSPARK_ERROR_FILE || fits == DSPARK_ERROR_FORMAT || fits == DSPARK_ERROR_MISMATCH);
    }
    dspark_draft_free(inspected);
    dspark_draft_free(draft);
    return 0;
}
