#include "pick.h"

#include "sampler_chain.h"
#include "verify.h"

#include <algorithm>
#include <cmath>

namespace dspark {

namespace {

constexpr int64_t block = 64; // values whose maximum is kept in registers

float block_max(const float * x, int64_t n) {
    float top = x[0];
    for (int64_t i = 1; i < n; ++i) {
        top = x[i] > top ? x[i] : top;
    }
    return top;
}

// The n_pick_rows largest, in no order: a heap with the least of them in front, which most blocks do not reach.
void take_likeliest(const float * x, int64_t n, std::vector<llama_token_data> & top) {
    const auto more = [](const llama_token_data & a, const llama_token_data & b) { return a.logit > b.logit; };
    top.clear();
    for (int64_t i = 0; i < n; i += block) {
        const int64_t end = std::min(i + block, n);
        if (top.size() == n_pick_rows && !(block_max(x + i, end - i) > top.front().logit)) {
            continue;
        }
        for (int64_t j = i; j < end; ++j) {
            if (top.size() == n_pick_rows) {
                if (!(x[j] > top.front().logit)) {
                    continue;
                }
                std::pop_heap(top.begin(), top.end(), more);
                top.pop_back();
            }
            top.push_back({(llama_token) j, x[j], 0.0f});
            std::push_heap(top.begin(), top.end(), more);
        }
    }
}

int32_t drawn_row(const float * x, int64_t n, slot_pick & pick) {
    take_likeliest(x, n, pick.rows);
    llama_token_data_array left = {pick.rows.data(), pick.rows.size(), -1, false};
    for (llama_sampler * step : *pick.steps) {
        llama_sampler_apply(step, &left);
    }
    pick.rows.resize(left.size);
    if (!softmax(left)) {
        const int32_t row = argmax(x, (int32_t) n);
        pick.rows.assign(1, {row, 0.0f, 1.0f});
        return row;
    }
    double sum = 0;
    for (const llama_token_data & t : pick.rows) {
        sum += (double) t.p;
        if (sum > pick.u) {
            return t.id;
        }
    }
    // u within rounding of 1: the last that can be drawn at all
    return std::find_if(pick.rows.rbegin(), pick.rows.rend(), [](const llama_token_data & t) { return t.p > 0; })->id;
}

void pick_rows(ggml_tensor * dst, int ith, int, void * userdata) {
    const ggml_tensor * src = dst->src[0];
    for (int64_t i = 0; ith == 0 && i < src->ne[1]; ++i) {
        const float * x    = reinterpret_cast<const float *>(static_cast<const char *>(src->data) + (size_t) i * src->nb[1]);
        slot_pick &   pick = static_cast<slot_pick *>(userdata)[i];
        static_cast<int32_t *>(dst->data)[i] = pick.steps ? drawn_row(x, src->ne[0], pick) : argmax(x, (int32_t) src->ne[0]);
    }
}

} // namespace

ggml_tensor * build_pick_rows(ggml_context * ctx, ggml_tensor * logits, slot_pick * pick) {
    ggml_tensor * args[] = {logits};
    return pick ? ggml_custom_4d(ctx, GGML_TYPE_I32, logits->ne[1], 1, 1, 1, args, 1, pick_rows, 1, pick) : ggml_argmax(ctx, logits);
}

} // namespace dspark
