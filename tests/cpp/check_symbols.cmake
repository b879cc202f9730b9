# cmake -DNM=nm -DLIBRARY=libdspark.so -P check_symbols.cmake
#
# Only dspark_* leaves the library, and it asks the dynamic linker for nothing of ggml or llama.cpp: it would be free to take
# them from another copy than the host's.

foreach (which defined undefined)
    execute_process(COMMAND ${NM} -D --${which}-only --format=posix ${LIBRARY} OUTPUT_VARIABLE lines RESULT_VARIABLE failed)
    if (failed OR NOT lines)
        message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
    endif()
    string(REGEX MATCHALL "[^\n]+" lines "${lines}")
    foreach (line IN LISTS lines)
        string(REGEX REPLACE "[ @].*" "" symbol "${line}")
        if (which STREQUAL "defined" AND NOT symbol MATCHES "^dspark_")
            message(SEND_ERROR "${symbol} leaves the library")
        elseif (which STREQUAL "undefined" AND symbol MATCHES "ggml|gguf|llama|dspark")
            message(SEND_ERROR "${symbol} is left to the dynamic linker")
        endif()
    endforeach()
endforeach()
