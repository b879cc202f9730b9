"""The drop-in on a real model with the demo draft: the same answers, with a real tokenizer and chat template.

F16 weights and an f32 cache. Rows computed together round differently from rows computed alone, and two nearly equal
tokens may change places; the prompts here have been looked at for that, on x86-64.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import Llama
from same import collect, differences

F32 = 0  # ggml_type
SETTINGS: dict[str, Any] = {
    "draft_n_max": 31,  # as many as the draft proposes: the automatic length follows the clock
    "n_ctx": 1024,
    "n_threads": 2,
    "n_threads_batch": 2,
    "verbose": False,
    "type_k": F32,
    "type_v": F32,
}

Pair = tuple[Any, Any]


@pytest.fixture(scope="module")
def pair(smollm_f16_path: Path, demo_draft_path: str) -> Iterator[Pair]:
    plain = llama_cpp.Llama(str(smollm_f16_path), **SETTINGS)
    drafted = Llama(str(smollm_f16_path), draft=demo_draft_path, **SETTINGS)
    yield plain, drafted
    plain.close(), drafted.close()


def chat(question: str, **arguments: Any) -> Callable[[Any], Any]:
    messages = [{"role": "user", "content": question}]
    arguments = {"max_tokens": 40, "temperature": 0.0, "seed": 1, **arguments}
    return lambda llm: llm.create_chat_completion(messages, **arguments)


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
    "required": ["city", "people"],
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "chat": chat("What is the capital of France?"),
    "chat, streamed": chat("What is the capital of France?", stream=True),
    "chat, sampled": chat("Name three colours.", temperature=0.7, seed=11),
    "JSON by a schema": chat("A city.", response_format={"type": "json_object", "schema": SCHEMA}, max_tokens=60),
    "completion": lambda llm: llm("The quick brown fox", max_tokens=32, temperature=0.0),
    "completion, stop": lambda llm: llm("1, 2, 3, 4,", max_tokens=40, temperature=0.0, stop=["9"]),
    "other scripts": chat("Translate to Chinese, Greek and emoji: love, sun", stream=True),
    "penalties": chat("Count to ten.", repeat_penalty=1.2, frequency_penalty=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_real_model_answers_the_same_with_its_draft(name: str, pair: Pair) -> None:
    plain, drafted = pair
    want, got = collect(CALLS[name](plain)), collect(CALLS[name](drafted))
    assert differences(want, got) == []
    assert drafted._input_ids.tolist() == plain._input_ids.tolist()
    assert drafted.speculation.last.draft_n > 0
    if "schema" in name:
        assert set(json.loads(got["choices"][0]["message"]["content"])) == {"city", "people"}


@pytest.mark.slow
def test_accepted_drafts_are_counted_on_a_real_model(pair: Pair) -> None:
    pair[1].create_chat_completion(
        [{"role": "user", "content": "Write the numbers from 1 to 20."}], max_tokens=60, temperature=0.0
    )
    last = pair[1].speculation.last
    assert last.mean_accepted_length > 1.3 and last.draft_n_accepted > 10
