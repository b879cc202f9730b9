"""A pytest plugin for llama-cpp-python's own tests: our Llama in place of the base, and local models for downloads.

DSPARK_UPSTREAM is a JSON object: "models" maps the names of the files that the tests download to local ones (None: the
test is skipped), "class" is "base", "plain" or "drafted", "drafts" maps local models to drafts.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import llama_cpp
import llama_cpp.llama
import numpy as np
import pytest

PLAN: dict[str, Any] = json.loads(os.environ["DSPARK_UPSTREAM"])


def local_file(repo_id: str, filename: str, **_: Any) -> str:
    path = PLAN["models"].get(os.path.basename(filename))
    if path is None:
        pytest.skip(f"there is no local model in place of {filename}")
    return str(path)


def module(name: str, **members: Any) -> None:
    """Stands in for a package that is only imported."""
    made = ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made


def log_softmax(x: Any, axis: int = -1) -> Any:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


module("huggingface_hub", hf_hub_download=local_file)
if find_spec("scipy") is None:
    module("scipy")
    module("scipy.special", log_softmax=log_softmax)

if PLAN["class"] != "base":
    from dspark_cpp import Llama, install

    class Drafted(Llama):
        def __init__(self, model_path: str, **settings: Any) -> None:
            super().__init__(model_path, draft=PLAN["drafts"].get(model_path), **settings)

    install()
    if PLAN["class"] == "drafted":
        llama_cpp.Llama = llama_cpp.llama.Llama = Drafted
