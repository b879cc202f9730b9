#include "gguf_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>

namespace dspark {

namespace {

const char * type_name(gguf_type type) {
    static const char * const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
    return (size_t) type < sizeof(names) / sizeof(*names) ? names[type] : "unknown";
}

int seek(FILE * file, uint64_t offset) {
#if defined(_WIN32)
    return _fseeki64(file, (int64_t) offset, SEEK_SET);
#else
    return fseeko(file, (off_t) offset, SEEK_SET);
#endif
}

uint64_t size_of(FILE * file) {
#if defined(_WIN32)
    _fseeki64(file, 0, SEEK_END);
    const int64_t size = _ftelli64(file);
#else
    fseeko(file, 0, SEEK_END);
    const int64_t size = (int64_t) ftello(file);
#endif
    return size > 0 ? (uint64_t) size : 0;
}

} // namespace

std::string shape_text(const std::vector<int64_t> & ne) {
    std::string text = "{";
    for (size_t i = 0; i < ne.size(); ++i) {
        text += (i ? ", " : "") + std::to_string(ne[i]);
    }
    return text + "}";
}

std::string shape_text(const ggml_tensor * tensor) {
    int n = GGML_MAX_DIMS;
    while (n > 1 && tensor->ne[n - 1] == 1) {
        --n;
    }
    return shape_text(std::vector<int64_t>(tensor->ne, tensor->ne + n));
}

gguf_file::gguf_file(const std::string & path) : path_(path) {
    file_.reset(fopen(path.c_str(), "rb"));
    if (!file_) {
        fail(DSPARK_ERROR_FILE, format("cannot open \"%s\": %s", path.c_str(), std::strerror(errno)));
    }
    file_size_ = size_of(file_.get());
    if (file_size_ >= (uint64_t) INT64_MAX) { // what a folder seems to have
        fail(DSPARK_ERROR_FILE, format("\"%s\" is a folder, expected a GGUF file; a checkpoint is converted with: dspark-cpp convert", path.c_str()));
    }

    // looked at before ggml does: its loader prints to the log, and cannot say what it found instead
    char magic[4] = {0, 0, 0, 0};
    if (seek(file_.get(), 0) != 0 || fread(magic, 1, 4, file_.get()) != 4) {
        fail(DSPARK_ERROR_FILE, format("\"%s\" is not a readable file of at least 4 bytes (it has %llu)", path.c_str(),
                                       (unsigned long long) file_size_));
    }
    if (std::memcmp(magic, "GGUF", 4) != 0) {
        fail(DSPARK_ERROR_FORMAT, format("\"%s\" is not a GGUF file: it begins with the bytes %02x %02x %02x %02x instead of \"GGUF\"",
                                         path.c_str(), (unsigned char) magic[0], (unsigned char) magic[1], (unsigned char) magic[2],
                                         (unsigned char) magic[3]));
    }

    ggml_context *   meta   = nullptr;
    gguf_init_params params = {/*no_alloc*/ true, &meta};
    gguf_.reset(gguf_init_from_file(path.c_str(), params));
    tensors_.reset(meta);
    if (!gguf_ || !tensors_) {
        fail(DSPARK_ERROR_FORMAT, format("\"%s\" has a damaged or truncated GGUF header", path.c_str()));
    }
    for (const std::string & name : tensor_names()) {
        const uint64_t begin = gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), gguf_find_tensor(gguf_.get(), name.c_str()));
        const uint64_t size  = ggml_nbytes(find_tensor(name));
        if (begin > file_size_ || size > file_size_ - begin) {
            fail(DSPARK_ERROR_FILE, format("\"%s\" is truncated: tensor \"%s\" ends at byte %llu but the file has %llu", path.c_str(),
                                           name.c_str(), (unsigned long long) (begin + size), (unsigned long long) file_size_));
        }
    }
}

void gguf_file::refuse(const std::string & what) const {
    fail(DSPARK_ERROR_FORMAT, format("\"%s\": %s", path_.c_str(), what.c_str()));
}

bool gguf_file::has(const std::string & key) const {
    return gguf_find_key(gguf_.get(), key.c_str()) >= 0;
}

int64_t gguf_file::find_key(const std::string & key, gguf_type type, bool required) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    if (id < 0) {
        if (required) {
            refuse("the key " + key + " is missing");
        }
        return -1;
    }
    const gguf_type seen = gguf_get_kv_type(gguf_.get(), id);
    if (seen != type) {
        refuse(format("the key %s has type %s, expected %s", key.c_str(), type_name(seen), type_name(type)));
    }
    return id;
}

const void * gguf_file::get_value(const std::string & key, gguf_type type, bool required) const {
    const int64_t id = find_key(key, type, required);
    return id < 0 ? nullptr : gguf_get_val_data(gguf_.get(), id);
}

uint32_t gguf_file::get_u32(const std::string & key) const {
    uint32_t value;
    std::memcpy(&value, get_value(key, GGUF_TYPE_UINT32, true), sizeof(value));
    return value;
}

uint32_t gguf_file::get_u32(const std::string & key, uint32_t absent) const {
    return has(key) ? get_u32(key) : absent;
}

float gguf_file::get_f32(const std::string & key) const {
    float value;
    std::memcpy(&value, get_value(key, GGUF_TYPE_FLOAT32, true), sizeof(value));
    if (!std::isfinite(value)) {
        refuse(format("the key %s is %g, expected a finite number", key.c_str(), (double) value));
    }
    return value;
}

float gguf_file::get_f32(const std::string & key, float absent) const {
    return has(key) ? get_f32(key) : absent;
}

bool gguf_file::get_bool(const std::string & key, bool absent) const {
    const void * value = get_value(key, GGUF_TYPE_BOOL, false);
    return value ? *static_cast<const int8_t *>(value) != 0 : absent;
}

std::string gguf_file::get_str(const std::string & key) const {
    return gguf_get_val_str(gguf_.get(), find_key(key, GGUF_TYPE_STRING, true));
}

std::string gguf_file::get_str(const std::string & key, const std::string & absent) const {
    return has(key) ? get_str(key) : absent;
}

const char * gguf_file::find_str(const std::string & key) const {
    const int64_t id = gguf_find_key(gguf_.get(), key.c_str());
    return id >= 0 && gguf_get_kv_type(gguf_.get(), id) == GGUF_TYPE_STRING ? gguf_get_val_str(gguf_.get(), id) : nullptr;
}

int64_t gguf_file::find_array(const std::string & key) const {
    return find_key(key, GGUF_TYPE_ARRAY, true);
}

std::vector<int32_t> gguf_file::get_i32_array(const std::string & key) const {
    const int64_t   id   = find_array(key);
    const gguf_type type = gguf_get_arr_type(gguf_.get(), id);
    // u32 too: other converters write layer ids as such, and the bits of small numbers are the same
    if (type != GGUF_TYPE_INT32 && type != GGUF_TYPE_UINT32) {
        refuse(format("the key %s is an array of %s, expected i32", key.c_str(), type_name(type)));
    }
    std::vector<int32_t> values(gguf_get_arr_n(gguf_.get(), id));
    if (!values.empty()) {
        std::memcpy(values.data(), gguf_get_arr_data(gguf_.get(), id), values.size() * sizeof(int32_t));
    }
    return values;
}

// The values of an array that has to be of one type and length; of_what is what there is one for each of.
const void * gguf_file::array_data(const std::string & key, gguf_type wanted, size_t n, const char * of_what) const {
    const int64_t   id   = find_array(key);
    const gguf_type type = gguf_get_arr_type(gguf_.get(), id);
    const size_t    seen = gguf_get_arr_n(gguf_.get(), id);
    if (type != wanted) {
        refuse(format("the key %s is an array of %s, expected %s", key.c_str(), type_name(type), type_name(wanted)));
    }
    if (seen != n) {
        refuse(format("the key %s has %zu values, expected one for each of %zu %s", key.c_str(), seen, n, of_what));
    }
    return gguf_get_arr_data(gguf_.get(), id);
}

std::vector<float> gguf_file::get_f32_array(const std::string & key, size_t n) const {
    const float * data = static_cast<const float *>(array_data(key, GGUF_TYPE_FLOAT32, n, "drafted tokens"));
    return std::vector<float>(data, data + n);
}

std::vector<bool> gguf_file::get_bool_array(const std::string & key, size_t n) const {
    const int8_t * data = static_cast<const int8_t *>(array_data(key, GGUF_TYPE_BOOL, n, "layers"));
    return std::vector<bool>(data, data + n);
}

std::vector<std::string> gguf_file::get_str_array(const std::string & key) const {
    const int64_t   id   = find_array(key);
    const gguf_type type = gguf_get_arr_type(gguf_.get(), id);
    if (type != GGUF_TYPE_STRING) {
        refuse(format("the key %s is an array of %s, expected string", key.c_str(), type_name(type)));
    }
    std::vector<std::string> values(gguf_get_arr_n(gguf_.get(), id));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = gguf_get_arr_str(gguf_.get(), id, i);
    }
    return values;
}

const ggml_tensor * gguf_file::find_tensor(const std::string & name) const {
    return ggml_get_tensor(tensors_.get(), name.c_str());
}

void gguf_file::read_tensor(const std::string & name, void * out) const {
    const int64_t  id     = gguf_find_tensor(gguf_.get(), name.c_str());
    const uint64_t offset = gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), id);
    const size_t   size   = ggml_nbytes(find_tensor(name));
    if (seek(file_.get(), offset) != 0 || fread(out, 1, size, file_.get()) != size) {
        fail(DSPARK_ERROR_FILE, format("\"%s\": cannot read the %zu bytes of tensor \"%s\" at offset %llu", path_.c_str(), size,
                                       name.c_str(), (unsigned long long) offset));
    }
}

std::vector<std::string> gguf_file::tensor_names() const {
    std::vector<std::string> names;
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_.get()); ++i) {
        names.emplace_back(gguf_get_tensor_name(gguf_.get(), i));
    }
    return names;
}

} // namespace dspark
