"""python fuzz_converter.py READER [libFuzzer options] [corpus folders]: one reader of the converter under atheris."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=["dspark_cpp.convert", "gguf", "safetensors", "pickletools", "json", "zipfile"]
):
    import converter_readers


def main() -> None:
    reader = sys.argv[1]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: converter_readers.run(reader, data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
