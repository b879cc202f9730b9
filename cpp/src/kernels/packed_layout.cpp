#include "packed_layout.h"

#include <algorithm>
#include <cstring>

namespace dspark::kernels {

namespace {

// A block of any of the types, taken apart.
struct block {
    uint8_t  q[256];
    uint16_t halfs[2];
    uint8_t  bytes[16];
};

// Where ggml keeps a block's parts: its fields in order of appearance, with their sizes in bytes.
struct q4_0 { static constexpr int d = 0, low = 2; };
struct q4_1 { static constexpr int d = 0, low = 4; };
struct q5_0 { static constexpr int d = 0, high = 2, low = 6; };
struct q8_0 { static constexpr int d = 0, low = 2; };
struct q4_K { static constexpr int d = 0, scales = 4, low = 16; };
struct q5_K { static constexpr int d = 0, scales = 4, high = 16, low = 48; };
struct q6_K { static constexpr int low = 0, high = 128, scales = 192, d = 208; };

// The K types pack eight 6-bit scales and eight 6-bit minima into 12 bytes: the first four of each lie in the low bits of bytes
// 0..3 and 4..7, the last four share bytes 8..11, with their upper two bits on top of the first eight bytes.
void split_scales(const uint8_t * p, uint8_t * bytes) {
    for (int i = 0; i < 4; ++i) {
        bytes[i]      = p[i] & 63;
        bytes[8 + i]  = p[4 + i] & 63;
        bytes[4 + i]  = (uint8_t) ((p[8 + i] & 15) | (p[i] >> 6) << 4);
        bytes[12 + i] = (uint8_t) (p[8 + i] >> 4 | (p[4 + i] >> 6) << 4);
    }
}

void join_scales(const uint8_t * bytes, uint8_t * p) {
    for (int i = 0; i < 4; ++i) {
        p[i]     = (uint8_t) (bytes[i] | (bytes[4 + i] >> 4) << 6);
        p[4 + i] = (uint8_t) (bytes[8 + i] | (bytes[12 + i] >> 4) << 6);
        p[8 + i] = (uint8_t) ((bytes[4 + i] & 15) | (bytes[12 + i] & 15) << 4);
    }
}

// Low nibbles come in runs: the weights of one in the low halves of as many bytes, those of the next in their high halves.
void split_nibbles(int n, int run, const uint8_t * p, uint8_t * q) {
    for (int k = 0; k < n; k += 2 * run, p += run) {
        for (int i = 0; i < run; ++i) {
            q[k + i]       = p[i] & 15;
            q[k + run + i] = p[i] >> 4;
        }
    }
}

void join_nibbles(int n, int run, const uint8_t * q, uint8_t * p) {
    for (int k = 0; k < n; k += 2 * run, p += run) {
        for (int i = 0; i < run; ++i) {
            p[i] = (uint8_t) ((q[k + i] & 15) | q[k + run + i] << 4);
        }
    }
}

void take_apart(ggml_type type, int q8_bias, const uint8_t * p, block & b) {
    switch (type) {
        case GGML_TYPE_Q4_0:
            memcpy(b.halfs, p + q4_0::d, 2);
            split_nibbles(32, 16, p + q4_0::low, b.q);
            break;
        case GGML_TYPE_Q4_1:
            memcpy(b.halfs, p + q4_1::d, 4);
            split_nibbles(32, 16, p + q4_1::low, b.q);
            break;
        case GGML_TYPE_Q5_0:
            memcpy(b.halfs, p + q5_0::d, 2);
            split_nibbles(32, 16, p + q5_0::low, b.q);
            for (int k = 0; k < 32; ++k) {
                b.q[k] = (uint8_t) (b.q[k] | ((p[q5_0::high + k / 8] >> k % 8) & 1) << 4);
            }
            break;
        case GGML_TYPE_Q8_0:
            memcpy(b.halfs, p + q8_0::d, 2);
            for (int k = 0; k < 32; ++k) {
                b.q[k] = (uint8_t) (p[q8_0::low + k] + q8_bias);
            }
            break;
        case GGML_TYPE_Q4_K:
            memcpy(b.halfs, p + q4_K::d, 4);
            split_scales(p + q4_K::scales, b.bytes);
            split_nibbles(256, 32, p + q4_K::low, b.q);
            break;
        case GGML_TYPE_Q5_K:
            memcpy(b.halfs, p + q5_K::d, 4);
            split_scales(p + q5_K::scales, b.bytes);
            split_nibbles(256, 32, p + q5_K::low, b.q);
            for (int k = 0; k < 256; ++k) {
                b.q[k] = (uint8_t) (b.q[k] | ((p[q5_K::high + k % 32] >> k / 32) & 1) << 4);
            }
            break;
        case GGML_TYPE_Q6_K:
            memcpy(b.halfs, p + q6_K::d, 2);
            memcpy(b.bytes, p + q6_K::scales, 16);
            split_nibbles(256, 64, p + q6_K::low, b.q);
            for (int k = 0; k < 256; ++k) {
                b.q[k] = (uint8_t) (b.q[k] | ((p[q6_K::high + k / 128 * 32 + k % 32] >> k % 128 / 32 * 2) & 3) << 4);
            }
            break;
        default: break;
    }
}

void put_together(ggml_type type, int q8_bias, const block & b, uint8_t * p) {
    switch (type) {
        case GGML_TYPE_Q4_0:
            memcpy(p + q4_0::d, b.halfs, 2);
            join_nibbles(32, 16, b.q, p + q4_0::low);
            break;
        case GGML_TYPE_Q4_1:
            memcpy(p + q4_1::d, b.halfs, 4);
            join_nibbles(32, 16, b.q, p + q4_1::low);
            break;
        case GGML_TYPE_Q5_0:
            memcpy(p + q5_0::d, b.halfs, 2);
            join_nibbles(32, 16, b.q, p + q5_0::low);
            for (int k = 0; k < 32; ++k) {
                p[q5_0::high + k / 8] = (uint8_t) (p[q5_0::high + k / 8] | (b.q[k] >> 4) << k % 8);
            }
            break;
        case GGML_TYPE_Q8_0:
            memcpy(p + q8_0::d, b.halfs, 2);
            for (int k = 0; k < 32; ++k) {
                p[q8_0::low + k] = (uint8_t) (b.q[k] - q8_bias);
            }
            break;
        case GGML_TYPE_Q4_K:
            memcpy(p + q4_K::d, b.halfs, 4);
            join_scales(b.bytes, p + q4_K::scales);
            join_nibbles(256, 32, b.q, p + q4_K::low);
            break;
        case GGML_TYPE_Q5_K:
            memcpy(p + q5_K::d, b.halfs, 4);
            join_scales(b.bytes, p + q5_K::scales);
            join_nibbles(256, 32, b.q, p + q5_K::low);
            for (int k = 0; k < 256; ++k) {
                p[q5_K::high + k % 32] = (uint8_t) (p[q5_K::high + k % 32] | (b.q[k] >> 4) << k / 32);
            }
            break;
        case GGML_TYPE_Q6_K:
            memcpy(p + q6_K::d, b.halfs, 2);
            memcpy(p + q6_K::scales, b.bytes, 16);
            join_nibbles(256, 64, b.q, p + q6_K::low);
            for (int k = 0; k < 256; ++k) {
                uint8_t & high = p[q6_K::high + k / 128 * 32 + k % 32];
                high           = (uint8_t) (high | (b.q[k] >> 4) << k % 128 / 32 * 2);
            }
            break;
        default: break;
    }
}

uint32_t load4(const uint8_t * p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

void store4(uint8_t * p, uint32_t v) { memcpy(p, &v, 4); }

// The 32 weights of a row in a group, four at a time.  The group's other rows have the same places, four bytes apart.
void put_group(int bits, int vector, const uint8_t * q, uint8_t * group) {
    uint32_t high[2] = {0, 0};
    for (int w = 0; w < 8; ++w) {
        const uint32_t v = load4(q + 4 * w);
        if (bits == 8) {
            store4(group + w * vector, v);
        } else if (w % 4 < 2) {
            store4(group + (w / 4 * 2 + w % 2) * vector, (v & 0x0f0f0f0f) | (load4(q + 4 * (w + 2)) & 0x0f0f0f0f) << 4);
        }
        high[bits == 6 && w >= 4] |= bits == 6 ? (v >> 4 & 0x03030303) << w % 4 * 2 : (v >> 4 & 0x01010101) << w;
    }
    for (int i = 0; i < bits - 4 && bits != 8; ++i) {
        store4(group + (4 + i) * vector, high[i]);
    }
}

void get_group(int bits, int vector, const uint8_t * group, uint8_t * q) {
    for (int w = 0; w < 8; ++w) {
        if (bits == 8) {
            store4(q + 4 * w, load4(group + w * vector));
            continue;
        }
        uint32_t v = load4(group + (w / 4 * 2 + w % 2) * vector) >> (w % 4 / 2 * 4) & 0x0f0f0f0f;
        if (bits == 5) {
            v |= (load4(group + 4 * vector) >> w & 0x01010101) << 4;
        } else if (bits == 6) {
            v |= (load4(group + (4 + w / 4) * vector) >> w % 4 * 2 & 0x03030303) << 4;
        }
        store4(q + 4 * w, v);
    }
}

// A row's scales in a record, where each field has a place for every row.
void put_scales(const packed_format & f, int lanes, int row, const block & b, uint8_t * record) {
    for (int i = 0; i < f.n_halfs; ++i) {
        memcpy(record + 2 * (i * lanes + row), &b.halfs[i], 2);
    }
    for (int i = 0; i < f.n_bytes; ++i) {
        record[(2 * f.n_halfs + i) * lanes + row] = b.bytes[i];
    }
}

void get_scales(const packed_format & f, int lanes, int row, const uint8_t * record, block & b) {
    for (int i = 0; i < f.n_halfs; ++i) {
        memcpy(&b.halfs[i], record + 2 * (i * lanes + row), 2);
    }
    for (int i = 0; i < f.n_bytes; ++i) {
        b.bytes[i] = record[(2 * f.n_halfs + i) * lanes + row];
    }
}

} // namespace

void pack(ggml_type type, int lanes, int q8_bias, int64_t n_k, int64_t n_rows, const void * rows, void * packed) {
    const packed_format f         = format_of(type);
    const size_t        row_bytes = ggml_row_size(type, n_k);
    const size_t        size      = ggml_type_size(type);
    const int64_t       n_blocks  = n_k / (32 * f.n_groups);
    uint8_t *           tile      = static_cast<uint8_t *>(packed);
    for (int64_t row0 = 0; row0 < n_rows; row0 += lanes, tile += tile_bytes(type, lanes, n_k)) {
        memset(tile, 0, tile_bytes(type, lanes, n_k));
        uint8_t * scales = tile + n_blocks * f.n_groups * f.group_bytes(lanes);
        for (int row = 0; row < std::min<int64_t>(lanes, n_rows - row0); ++row) {
            const uint8_t * from = static_cast<const uint8_t *>(rows) + (size_t) (row0 + row) * row_bytes;
            for (int64_t i = 0; i < n_blocks; ++i, from += size) {
                block b;
                take_apart(type, q8_bias, from, b);
                for (int g = 0; g < f.n_groups; ++g) {
                    put_group(f.bits, 4 * lanes, b.q + 32 * g, tile + (i * f.n_groups + g) * f.group_bytes(lanes) + 4 * row);
                }
                put_scales(f, lanes, row, b, scales + i * f.scale_bytes(lanes));
            }
        }
    }
}

void unpack(ggml_type type, int lanes, int q8_bias, int64_t n_k, int64_t n_rows, const void * packed, void * rows) {
    const packed_format f        = format_of(type);
    const size_t        size     = ggml_type_size(type);
    const int64_t       n_blocks = n_k / (32 * f.n_groups);
    uint8_t *           to       = static_cast<uint8_t *>(rows);
    memset(rows, 0, (size_t) n_rows * ggml_row_size(type, n_k));
    for (int64_t r = 0; r < n_rows; ++r) {
        const uint8_t * tile   = static_cast<const uint8_t *>(packed) + (size_t) (r / lanes) * tile_bytes(type, lanes, n_k);
        const uint8_t * scales = tile + n_blocks * f.n_groups * f.group_bytes(lanes);
        const int       row    = (int) (r % lanes);
        for (int64_t i = 0; i < n_blocks; ++i, to += size) {
            block b;
            for (int g = 0; g < f.n_groups; ++g) {
                get_group(f.bits, 4 * lanes, tile + (i * f.n_groups + g) * f.group_bytes(lanes) + 4 * row, b.q + 32 * g);
            }
            get_scales(f, lanes, row, scales + i * f.scale_bytes(lanes), b);
            put_together(type, q8_bias, b, to);
        }
    }
}

} // namespace dspark::kernels
