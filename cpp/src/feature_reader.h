// Features and likely next tokens of whole sequences, for training data.
#pragma once

#include "ownership.h"
#include "target.h"

namespace dspark {

class feature_reader {
  public:
    feature_reader(llama_context * ctx, std::vector<int32_t> layers, int32_t source_kind, dspark_feature_tap * tap);

    // Decodes a sequence of its own.  features is [n][m*H]; top_ids and top_probs are [n - first_row][k], the rows from first_row on,
    // or nothing with k 0.
    void read(const int32_t * tokens, int32_t n, int32_t first_row, int32_t k, float * features, int32_t * top_ids, float * top_probs);

    const char * source_name() const { return target_.source_name(); }

  private:
    ownership          owned_;
    target             target_;
    std::vector<float> rows_;
};

} // namespace dspark
