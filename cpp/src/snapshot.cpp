#include "snapshot.h"

namespace dspark {

namespace {

struct header {
    char     magic[8];
    uint32_t version;
    uint32_t reserved;
    uint64_t n_bytes;
    uint64_t checksum;
};

constexpr char     magic[8] = {'D', 'S', 'P', 'K', 'S', 'N', 'A', 'P'};
constexpr uint32_t version  = 1;

uint64_t checksum_of(const uint8_t * data, size_t n_bytes) {
    fnv1a hash;
    hash.add(data, n_bytes);
    return hash.value();
}

} // namespace

std::vector<uint8_t> snapshot_writer::finish() const {
    header h = {};
    std::memcpy(h.magic, magic, sizeof(magic));
    h.version  = version;
    h.n_bytes  = payload_.size();
    h.checksum = checksum_of(payload_.data(), payload_.size());
    std::vector<uint8_t> all(sizeof(h) + payload_.size());
    std::memcpy(all.data(), &h, sizeof(h));
    std::copy(payload_.begin(), payload_.end(), all.begin() + sizeof(h));
    return all;
}

snapshot_reader::snapshot_reader(const uint8_t * data, size_t n_bytes) : at_(data), left_(n_bytes) {
    if (n_bytes < sizeof(header)) {
        fail(DSPARK_ERROR_FORMAT, format("the saved state has %zu bytes, expected at least %zu", n_bytes, sizeof(header)));
    }
    const header h = get<header>();
    if (std::memcmp(h.magic, magic, sizeof(magic)) != 0) {
        fail(DSPARK_ERROR_FORMAT, "these bytes are not a saved state: they do not begin with DSPKSNAP");
    }
    if (h.version != version) {
        fail(DSPARK_ERROR_FORMAT, format("the saved state has version %u, expected %u", h.version, version));
    }
    if (h.reserved != 0) {
        fail(DSPARK_ERROR_FORMAT, format("the saved state is damaged: its reserved field is %u, expected 0", h.reserved));
    }
    if (h.n_bytes != left_) {
        fail(DSPARK_ERROR_FORMAT, format("the saved state has %zu bytes of content, expected %llu", left_, (unsigned long long) h.n_bytes));
    }
    if (h.checksum != checksum_of(at_, left_)) {
        fail(DSPARK_ERROR_FORMAT, "the saved state is damaged: its checksum does not match its content");
    }
}

} // namespace dspark
