// The input is a session's saved state, as it is (first byte even) or given a header that fits, so that the checksum does not stop all
// of them: it is refused and the session goes on with the same text, or it is taken and the session decodes.
#include "fuzz_target.h"

#include "snapshot.h"

#include <memory>

static const std::vector<int32_t> prompt = {1, 17, 42, 9, 33};

static dspark_session * open() {
    dspark_session_params params;
    dspark_session_params_init(&params);
    params.draft.n_threads = 1;
    dspark_session * s     = nullptr;
    ASSERT_OK(dspark_session_create(fuzz::pair::get().ctx, fuzz::pair::get().draft, &params, &s));
    return s;
}

static void append(dspark_session * s, const std::vector<int32_t> & tokens) {
    int32_t n = 0;
    ASSERT_OK(dspark_session_append(s, tokens.data(), (int32_t) tokens.size(), &n));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static dspark_session * const s = open();
    static const int32_t          wanted = [] {
        int32_t token = -1;
        append(s, prompt);
        ASSERT_OK(dspark_session_next(s, nullptr, -1, &token));
        return token;
    }();
    static const std::unique_ptr<dspark_session, void (*)(dspark_session *)> owner(s, dspark_session_free);

    ASSERT_OK(dspark_session_rewind(s, 0));
    append(s, prompt);
    std::vector<uint8_t> state(data + std::min<size_t>(size, 1), data + size);
    if (size > 0 && data[0] % 2) {
        dspark::snapshot_writer to;
        to.put(state.data(), state.size());
        state = to.finish();
    }
    state.reserve(1); // a pointer that is not NULL
    const dspark_status status = dspark_session_load(s, state.data(), state.size());
    int32_t             token  = -1;
    if (status == DSPARK_OK) {
        append(s, {5});
        ASSERT_OK(dspark_session_next(s, nullptr, -1, &token));
        ASSERT_OK(dspark_session_next(s, nullptr, -1, &token));
        ASSERT(token >= 0 && token < 64);
    } else {
        ASSERT(status == DSPARK_ERROR_FORMAT || status == DSPARK_ERROR_MISMATCH || status == DSPARK_ERROR_CONTEXT_FULL ||
               status == DSPARK_ERROR_STATE || status == DSPARK_ERROR_ARGUMENT);
        ASSERT(dspark_last_error()[0] != '\0');
        ASSERT_OK(dspark_session_next(s, nullptr, -1, &token));
        ASSERT(token == wanted);
    }
    return 0;
}
