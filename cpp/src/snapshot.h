// A session's saved state as bytes: written and read field by field, with a checksum over all.
//
//     magic "DSPKSNAP" | u32 version | u32 0 | u64 n_bytes of the payload | u64 checksum of the payload | payload
//
// All integers are little-endian, as on every machine that ggml's CPU backend runs on.
#pragma once

#include "error.h"

#include <cstdint>
#include <cstring>
#include <vector>

namespace dspark {

// FNV-1a of 64 bits: for telling files and states apart and noticing damage; no protection against forgery.
class fnv1a {
  public:
    void add(const void * data, size_t n_bytes) {
        const unsigned char * bytes = static_cast<const unsigned char *>(data);
        for (size_t i = 0; i < n_bytes; ++i) {
            value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
        }
    }
    template <typename T> void add(const T & value) { add(&value, sizeof(value)); }
    uint64_t value() const { return value_; }

  private:
    uint64_t value_ = 0xcbf29ce484222325u;
};

class snapshot_writer {
  public:
    template <typename T> void put(const T & value) { put(&value, sizeof(value)); }
    void put(const void * data, size_t n_bytes) {
        if (n_bytes > 0) { // an empty vector has no pointer
            std::memcpy(grow(n_bytes), data, n_bytes);
        }
    }

    // n_bytes to be filled by the caller, before the next call.
    uint8_t * grow(size_t n_bytes) {
        payload_.resize(payload_.size() + n_bytes);
        return payload_.data() + payload_.size() - n_bytes;
    }

    // Header and payload.
    std::vector<uint8_t> finish() const;

  private:
    std::vector<uint8_t> payload_;
};

class snapshot_reader {
  public:
    // Throws DSPARK_ERROR_FORMAT for what is no snapshot of this version, or is damaged.  data must outlive the reader.
    snapshot_reader(const uint8_t * data, size_t n_bytes);

    template <typename T> T get() {
        T value;
        std::memcpy(&value, take(sizeof(T)), sizeof(T));
        return value;
    }

    // The next n_bytes; throws if fewer are left.
    const uint8_t * take(size_t n_bytes) {
        if (n_bytes > left_) {
            fail(DSPARK_ERROR_FORMAT, format("the saved state ends early: %zu bytes are left, expected %zu", left_, n_bytes));
        }
        const uint8_t * at = at_;
        at_ += n_bytes;
        left_ -= n_bytes;
        return at;
    }

    // Throws if anything is left.
    void require_end() const {
        if (left_ > 0) {
            fail(DSPARK_ERROR_FORMAT, format("the saved state has %zu bytes too many", left_));
        }
    }

  private:
    const uint8_t * at_;
    size_t          left_;
};

} // namespace dspark
