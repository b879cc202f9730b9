// What every fuzz target shares.  A broken claim ends the process, which is what libFuzzer records.
#pragma once

#include "test.h"
#include "toy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#undef ASSERT
#define ASSERT(claim)                                                                                                    \
    do {                                                                                                               \
        if (!(claim)) {                                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n    last error: %s\n", __FILE__, __LINE__, #claim, dspark_last_error());   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);

namespace fuzz {

// The sizes of the smallest draft that has every part: a seed of a few kilobytes.
inline toy::draft_options small_draft() {
    toy::draft_options o;
    o.H = o.F = 8;
    o.L       = 2;
    o.nq      = 2;
    o.nkv     = 1;
    o.d       = 4;
    o.V       = 12;
    o.Vd      = 8;
    o.R       = 4;
    o.B       = 4;
    return o;
}

// An input taken apart from its beginning; zeros once it is used up.
class bytes {
  public:
    bytes(const uint8_t * data, size_t size) : at_(data), left_(size) {}

    size_t left() const { return left_; }

    uint8_t byte() {
        if (left_ == 0) {
            return 0;
        }
        --left_;
        return *at_++;
    }

    int32_t int32() {
        uint32_t value = 0;
        for (int i = 0; i < 4; ++i) {
            value = value << 8 | byte();
        }
        return (int32_t) value;
    }

    // Mostly a number of [low, high], now and then any.
    int32_t near(int32_t low, int32_t high) {
        const uint8_t kind = byte();
        if (kind < 16) {
            const int32_t wild[] = {-1, 0, 1, INT32_MAX, INT32_MIN, INT32_MAX - 1, 1 << 16, -2};
            return kind < 8 ? wild[kind] : int32();
        }
        return low + (int32_t) (byte() % (uint32_t) (high - low + 1));
    }

    bool chance(int one_in) { return byte() % one_in == 0; }

  private:
    const uint8_t * at_;
    size_t          left_;
};

} // namespace fuzz
