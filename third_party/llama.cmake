# Finds the headers of llama.cpp and ggml in the installed llama-cpp-python, and the ggml version they belong to.
# Sets DSPARK_LLAMA_INCLUDE and DSPARK_GGML_VERSION.  Nothing is linked: see cpp/src/llama_binding.h.
#
# -DDSPARK_LLAMA_PREFIX=DIR takes another installation (DIR/include/llama.h, DIR/lib/cmake/ggml).

set(DSPARK_LLAMA_PREFIX "" CACHE PATH "Prefix of a llama.cpp installation; default: that of llama-cpp-python")

if (NOT DSPARK_LLAMA_PREFIX)
    # the folder that holds the package llama_cpp also holds include/ and lib/
    execute_process(
        COMMAND ${Python_EXECUTABLE} -c "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('llama_cpp').origin).parents[1].as_posix())"
        OUTPUT_VARIABLE DSPARK_LLAMA_FOUND OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
else()
    set(DSPARK_LLAMA_FOUND ${DSPARK_LLAMA_PREFIX})
endif()

set(DSPARK_LLAMA_INCLUDE ${DSPARK_LLAMA_FOUND}/include)
if (NOT EXISTS ${DSPARK_LLAMA_INCLUDE}/llama.h)
    message(FATAL_ERROR
        "No llama.h in \"${DSPARK_LLAMA_INCLUDE}\".  Install llama-cpp-python for ${Python_EXECUTABLE}:\n"
        "    pip install 'llama-cpp-python>=0.3.36,<0.3.37'\n"
        "or name another llama.cpp installation with -DDSPARK_LLAMA_PREFIX=DIR.")
endif()

file(GLOB DSPARK_GGML_VERSION_FILE ${DSPARK_LLAMA_FOUND}/lib*/cmake/ggml/ggml-config-version.cmake)
if (NOT DSPARK_GGML_VERSION_FILE)
    message(FATAL_ERROR "No lib/cmake/ggml/ggml-config-version.cmake in \"${DSPARK_LLAMA_FOUND}\": its ggml version is unknown.")
endif()
list(GET DSPARK_GGML_VERSION_FILE 0 DSPARK_GGML_VERSION_FILE)
file(STRINGS ${DSPARK_GGML_VERSION_FILE} DSPARK_GGML_VERSION REGEX "^set\\(PACKAGE_VERSION ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" DSPARK_GGML_VERSION "${DSPARK_GGML_VERSION}")
message(STATUS "llama.cpp headers: ${DSPARK_LLAMA_INCLUDE} (ggml ${DSPARK_GGML_VERSION})")
