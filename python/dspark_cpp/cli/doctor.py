"""dspark-cpp doctor: what was found on this machine, for bug reports."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

from .. import __version__

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "doctor", help="print what was found", description="Prints the versions, devices and features that were found."
    )
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(func=run)


def _report() -> dict[str, Any]:
    report: dict[str, Any] = {
        "dspark_cpp": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as exc:  # a broken build fails while loading its library
        report["problem"] = f"llama_cpp cannot be imported: {exc}"
        return report
    report["llama_cpp"] = llama_cpp.__version__
    report["libllama"] = getattr(llama_cpp.llama_cpp._lib, "_name", "unknown")
    try:
        from .. import kernels
        from .._native import TESTED_LLAMA_CPP, lib, text
        from ..params import devices
    except ImportError as exc:
        report["problem"] = str(exc)
        return report
    report["llama_cpp_tested"] = f">={TESTED_LLAMA_CPP[0]}, <{TESTED_LLAMA_CPP[1]}"
    report["llama.cpp"] = text(lib.dspark_bound_llama_version())
    report["ggml"] = f"{text(lib.dspark_bound_ggml_version())} (commit {text(lib.dspark_bound_ggml_commit())})"
    report["ggml_built_against"] = text(lib.dspark_build_ggml_version())
    report["devices"] = [
        f"{name} ({kind}: {text(lib.dspark_device_description(i))})" for i, (name, kind) in enumerate(devices())
    ]
    report["system_info"] = llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip()
    report["gpu_offload"] = bool(llama_cpp.llama_supports_gpu_offload())
    report["layer_taps"] = bool(lib.dspark_has_layer_taps())
    found = kernels.install("auto")
    report["kernels"] = f"{found.isa}, self-test passed" if found.active else f"off: {found.reason}"
    if found.removed:
        report["llama.cpp's kernels"] = f"those of {found.removed} crash here, as GCC compiled them; not used"
    return report


def run(args: argparse.Namespace) -> int:
    report = _report()
    if args.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            for line in value if isinstance(value, list) else [value]:
                print(f"{key:20} {('yes' if line else 'no') if isinstance(line, bool) else line}")
    return 1 if "problem" in report else 0
