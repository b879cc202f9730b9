// Typed access to the metadata and tensors of one GGUF file.  Every miss is a sentence that names the file and the key.
#pragma once

#include "llama_binding.h"

#include <array>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

namespace dspark {

class gguf_file {
  public:
    // Reads the header.  Throws DSPARK_ERROR_FILE or DSPARK_ERROR_FORMAT.
    explicit gguf_file(const std::string & path);

    gguf_file(const gguf_file &)             = delete;
    gguf_file & operator=(const gguf_file &) = delete;

    const std::string & path() const { return path_; }

    // Metadata.  get_* with a default return it when the key is absent; a key of another type is refused.
    bool                     has(const std::string & key) const;
    uint32_t                 get_u32(const std::string & key) const;
    uint32_t                 get_u32(const std::string & key, uint32_t absent) const;
    float                    get_f32(const std::string & key) const;
    float                    get_f32(const std::string & key, float absent) const;
    bool                     get_bool(const std::string & key, bool absent) const;
    std::string              get_str(const std::string & key) const;
    std::string              get_str(const std::string & key, const std::string & absent) const;
    std::vector<int32_t>     get_i32_array(const std::string & key) const;
    std::vector<float>       get_f32_array(const std::string & key, size_t n) const;
    std::vector<bool>        get_bool_array(const std::string & key, size_t n) const;
    std::vector<std::string> get_str_array(const std::string & key) const;

    // A string value, or null if the key is absent or not a string; lives as long as the file.
    const char * find_str(const std::string & key) const;

    // Tensors.
    // The description of a tensor; null if the file has none of the name.
    const ggml_tensor * find_tensor(const std::string & name) const;
    // Reads a tensor's bytes; throws if the file ends before them.
    void read_tensor(const std::string & name, void * out) const;
    // All tensor names in file order.
    std::vector<std::string> tensor_names() const;

    [[noreturn]] void refuse(const std::string & what) const;

  private:
    int64_t      find_key(const std::string & key, gguf_type type, bool required) const;
    int64_t      find_array(const std::string & key) const;
    const void * array_data(const std::string & key, gguf_type wanted, size_t n, const char * of_what) const;
    const void * get_value(const std::string & key, gguf_type type, bool required) const;

    struct file_closer {
        void operator()(FILE * f) const { fclose(f); }
    };

    std::string                        path_;
    std::unique_ptr<FILE, file_closer> file_;
    uint64_t                           file_size_ = 0;
    gguf_context_ptr                   gguf_;
    ggml_context_ptr                   tensors_;
};

// "{576, 8192}": the dimensions of a tensor as messages show them.
std::string shape_text(const ggml_tensor * tensor);
std::string shape_text(const std::vector<int64_t> & ne);

} // namespace dspark
