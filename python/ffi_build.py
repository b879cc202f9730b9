"""Writes the C source of the cffi binding from dspark.h: `python ffi_build.py dspark.h OUT.c`."""

import re
import sys
from pathlib import Path

import cffi

# Python objects that act as drafters come in through these; see drafters.py.
CALLBACKS = """
extern "Python" int dspark_py_append(void *, const float *, int32_t, int32_t);
extern "Python" int dspark_py_rewind(void *, int32_t);
extern "Python" int dspark_py_propose(void *, int32_t, int32_t, int32_t, int32_t *, int32_t *);
"""


def declarations(header: str) -> str:
    """The part of the header between its cdef marks, without what only the C compiler needs."""
    text = Path(header).read_text(encoding="utf-8")
    body = text.split("/* cdef:", 1)[1].split("*/", 1)[1].split("/* cdef: end */", 1)[0]
    return re.sub(r"\bDSPARK_API\b", "", body)


def main() -> None:
    header, out = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.cdef(declarations(header) + CALLBACKS)
    ffi.set_source("dspark_cpp._ffi", '#include "dspark.h"', py_limited_api=True)
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main()
