// The one exception type of the library, and how to raise it with a formatted sentence.
#pragma once

#include "dspark.h"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace dspark {

struct error : std::runtime_error {
    error(dspark_status status_, const std::string & message) : std::runtime_error(message), status(status_) {}

    dspark_status status;
};

#if defined(__MINGW32__)
__attribute__((format(__MINGW_PRINTF_FORMAT, 1, 2))) // those of C, not of Windows' own library
#elif defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
inline std::string format(const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    va_list copy;
    va_copy(copy, args);
    const int n = vsnprintf(nullptr, 0, fmt, args);
    va_end(args);
    std::string text(n > 0 ? (size_t) n : 0, '\0');
    vsnprintf(&text[0], text.size() + 1, fmt, copy);
    va_end(copy);
    return text;
}

[[noreturn]] inline void fail(dspark_status status, const std::string & message) {
    throw error(status, message);
}

} // namespace dspark
