// Hands out the chunks of an operation to threads as they become free.
#pragma once

#include "ggml_cpu_private.h"

#include <atomic>

namespace dspark::kernels {

// The counters lie at the end of the operation's own parameters, which MUL_MAT and FLASH_ATTN_EXT do not use: so they need no
// look-up, and no barrier before their use, as the last thread leaves them at zero for the next time.
class chunk_counter {
  public:
    explicit chunk_counter(ggml_tensor * op)
        : next_(*reinterpret_cast<std::atomic<int32_t> *>(&op->op_params[14])), done_(*reinterpret_cast<std::atomic<int32_t> *>(&op->op_params[15])) {
        static_assert(sizeof(op->op_params) == 64 && sizeof(std::atomic<int32_t>) == 4, "two counters at the end of the parameters");
    }

    // By the planner: a computation that was broken off leaves anything.
    void reset() {
        next_ = 0;
        done_ = 0;
    }

    int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

    // By every thread, after its last chunk.
    void leave(int n_threads) {
        if (done_.fetch_add(1) + 1 == n_threads) {
            reset();
        }
    }

  private:
    std::atomic<int32_t> & next_;
    std::atomic<int32_t> & done_;
};

} // namespace dspark::kernels
