#include "feature_reader.h"

#include "top_k.h"

#include <algorithm>

namespace dspark {

feature_reader::feature_reader(llama_context * ctx, std::vector<int32_t> layers, int32_t source_kind, dspark_feature_tap * tap)
    : owned_(ctx), target_(ctx, layers, source_kind, tap) {
    if (layers.empty()) {
        fail(DSPARK_ERROR_ARGUMENT, "no layers were named, expected at least one whose inputs are to be read");
    }
}

void feature_reader::read(const int32_t * tokens, int32_t n, int32_t first_row, int32_t k, float * features, int32_t * top_ids, float * top_probs) {
    if (n < 1 || n > target_.n_ctx()) {
        fail(n < 1 ? DSPARK_ERROR_ARGUMENT : DSPARK_ERROR_CONTEXT_FULL, format("the sequence has %d tokens, expected 1 to %d", n, target_.n_ctx()));
    }
    if (first_row < 0 || first_row > n) {
        fail(DSPARK_ERROR_ARGUMENT, format("the first row with a distribution is %d, expected 0 to %d", first_row, n));
    }
    if (k < 0 || k > target_.n_vocab()) {
        fail(DSPARK_ERROR_ARGUMENT, format("top_k is %d, expected 0 to %d", k, target_.n_vocab()));
    }
    target_.require_tokens(tokens, n);
    target_.clear();
    for (int32_t pos = 0; pos < n;) {
        const int32_t count = std::min(n - pos, target_.n_batch());
        // llama.cpp wants one output in a batch
        const int32_t first = std::clamp(k > 0 ? first_row - pos : count, 0, count - 1);
        target_.decode(tokens + pos, count, pos, first, rows_);
        std::copy(rows_.begin(), rows_.end(), features + (size_t) pos * (rows_.size() / (size_t) count));
        for (int32_t row = std::max(0, first_row - pos); k > 0 && row < count; ++row) {
            const float * logits = target_.logits(row);
            if (!logits) {
                fail(DSPARK_ERROR_BACKEND, format("the target has no logits for row %d of its batch", row));
            }
            const size_t at = (size_t) (pos + row - first_row) * (size_t) k;
            top_k(logits, target_.n_vocab(), k, top_ids + at, top_probs + at);
        }
        pos += count;
    }
}

} // namespace dspark
