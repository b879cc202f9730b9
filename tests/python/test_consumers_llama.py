"""Frameworks that make or receive a llama_cpp.Llama: with ours and a draft they return what they return with the base.

Each test runs in processes of its own, one for each class: install() must come before the framework is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

#: what every program below begins with; OURS, MODEL and DRAFT are its arguments
PROLOGUE = """
import json, sys
OURS, MODEL, DRAFT = sys.argv[1] == "ours", sys.argv[2], sys.argv[3]
import dspark_cpp, llama_cpp
BASE = llama_cpp.Llama
if OURS:
    dspark_cpp.install()
# f32 caches: with f16 ones a block of rows may round another way than one row
SETTINGS = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "verbose": False, "type_k": 0, "type_v": 0}
DRAFTED = {"draft": DRAFT} if OURS else {}
TEXT = "The lighthouse at the end of the "

def make(**more):
    return llama_cpp.Llama(MODEL, **SETTINGS, **DRAFTED, **more)

def done(llm, *results):
    assert isinstance(llm, BASE) and isinstance(llm, dspark_cpp.Llama) is OURS
    n = llm.speculation.total.draft_n if OURS else 0
    print("RESULT" + json.dumps([n, results]))
"""

#: distribution and class -> a program
PROGRAMS = {
    "langchain-community LlamaCpp": """
from langchain_community.llms import LlamaCpp
llm = LlamaCpp(model_path=MODEL, temperature=0.0, max_tokens=30, n_ctx=1024, n_threads=1, verbose=False, f16_kv=True,
               model_kwargs={"type_k": 0, "type_v": 0, "n_threads_batch": 1, **DRAFTED})
done(llm.client, llm.invoke(TEXT), list(llm.stream(TEXT)), llm.invoke(TEXT, stop=["e"]), llm.get_num_tokens(TEXT))
""",
    "langchain-community ChatLlamaCpp": """
from langchain_community.chat_models import ChatLlamaCpp
llm = ChatLlamaCpp(model_path=MODEL, temperature=0.0, max_tokens=30, n_ctx=1024, n_threads=1, verbose=False,
                   model_kwargs={"type_k": 0, "type_v": 0, "n_threads_batch": 1, **DRAFTED})
tool = {"type": "function", "function": {"name": "find", "description": "finds", "parameters":
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}
bound = llm.bind_tools([tool], tool_choice={"type": "function", "function": {"name": "find"}})
calls = [[c["name"], c["args"]] for c in bound.invoke(TEXT).tool_calls]
done(llm.client, llm.invoke(TEXT).content, [c.content for c in llm.stream(TEXT)], calls)
""",
    "llama-index-llms-llama-cpp": """
from llama_index.core.llms import ChatMessage
from llama_index.llms.llama_cpp import LlamaCPP
llm = LlamaCPP(model_path=MODEL, temperature=0.0, max_new_tokens=30, context_window=1024, verbose=False,
               model_kwargs={**SETTINGS, **DRAFTED},
               messages_to_prompt=lambda messages: " ".join(m.content for m in messages), completion_to_prompt=str)
done(llm._model, llm.complete(TEXT).text, [c.delta for c in llm.stream_complete(TEXT)],
     llm.chat([ChatMessage(content=TEXT)]).message.content)
""",
    "instructor": """
import instructor
from pydantic import BaseModel
from typing import Literal

class Find(BaseModel):
    place: Literal["river", "sea"]
    near: bool

# its JSON modes ask for a response_format that llama_cpp does not know
llm = make(chat_format="chatml-function-calling")
create = instructor.patch(create=llm.create_chat_completion_openai_v1, mode=instructor.Mode.TOOLS)
found = create(messages=[{"role": "user", "content": TEXT}], response_model=Find, max_tokens=200, temperature=0.0)
done(llm, found.model_dump())
""",
    "outlines": """
import outlines
from typing import Literal
llm = make()
model = outlines.from_llamacpp(llm, chat_mode=False)
done(llm, model(TEXT, max_tokens=30, temperature=0.0),
     model(TEXT, outlines.types.Regex("[a-c ]{8,20}[.]"), max_tokens=30, temperature=0.0),
     model(TEXT, Literal["river", "sea"], temperature=0.0),
     list(model.stream(TEXT, max_tokens=10, temperature=0.0)))
""",
    "lm-format-enforcer": """
from lmformatenforcer import JsonSchemaParser, RegexParser
from lmformatenforcer.integrations.llamacpp import build_llamacpp_logits_processor, build_token_enforcer_tokenizer_data
llm = make()
data = build_token_enforcer_tokenizer_data(llm)
schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
texts = []
for parser in (RegexParser("[a-c ]{8,20}[.]"), JsonSchemaParser(schema)):
    processors = llama_cpp.LogitsProcessorList([build_llamacpp_logits_processor(data, parser)])
    texts.append(llm(TEXT, logits_processor=processors, max_tokens=40, temperature=0.0)["choices"][0]["text"])
done(llm, *texts)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_framework_returns_with_a_draft_what_it_returns_without(
    name: str, tiny_path: Callable[[str], Path], converted: Callable[..., Path], run_python: Callable[..., Any]
) -> None:
    try:
        version(name.split()[0])
    except PackageNotFoundError:
        pytest.skip(f"{name.split()[0]} is not installed (pip install 'dspark-cpp-python[consumers]')")
    arguments = tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla")
    results = []
    for which in ("base", "ours"):
        ran = run_python(PROLOGUE + PROGRAMS[name], which, *arguments, timeout=120)
        assert ran.returncode == 0, ran.stderr
        results.append(json.loads(ran.stdout.split("RESULT")[1]))
    (_, want), (n_drafted, got) = results
    assert got == want
    assert n_drafted > 0
