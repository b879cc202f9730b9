"""The server's app against llama_cpp.server's own: the same answers, and what drafting brought beside them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from same import differences

pytest.importorskip("fastapi", reason="the server's packages are missing (pip install 'dspark-cpp-python[server]')")
pytest.importorskip("sse_starlette", reason="the server's packages are missing")
pytest.importorskip("prometheus_client", reason="the server's packages are missing")

import llama_cpp.server.app as base_app
import llama_cpp.server.settings as base_settings
from dspark_cpp import FileError, FormatError, Llama
from dspark_cpp.server import ModelSettings, ServerSettings, Settings, create_app
from dspark_cpp.server.settings import draft_arguments
from fastapi.testclient import TestClient

TEXT = "The lighthouse at the end of the "
MESSAGES = [{"role": "user", "content": "Tell me of the lighthouse."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "finds",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
#: f32 caches: with f16 ones a block of rows may round another way than one row
COMMON: dict[str, Any] = {
    "n_ctx": 512,
    "n_threads": 1,
    "n_threads_batch": 1,
    "verbose": False,
    "type_k": 0,
    "type_v": 0,
    "chat_format": "chatml",
}


class Server:
    """An app, and the models that belong to it: llama_cpp.server keeps those of the newest app in a global variable."""

    def __init__(self, app: Any) -> None:
        self.proxy: Any = base_app._llama_proxy
        self._client = TestClient(app)

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> Any:
        base_app._llama_proxy = self.proxy
        return self._client.request(method, path, json=body, headers=headers)

    def post(self, path: str, **body: Any) -> Any:
        """The answer; of a stream its events."""
        response = self.request("POST", path, body)
        assert response.status_code == 200, response.text
        if not body.get("stream"):
            return response.json()
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    @property
    def llm(self) -> Any:
        return self.proxy()

    def metrics(self) -> dict[str, float]:
        lines = self.request("GET", "/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


@pytest.fixture(scope="module")
def paths(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> dict[str, str]:
    return {
        "model": str(tiny_path("target-qwen3")),
        "draft": str(converted("deepspec-qwen3-vanilla")),
        "draft_n_max": 31,
    }


@pytest.fixture(scope="module")
def theirs(paths: dict[str, str]) -> Iterator[Server]:
    server = Server(base_app.create_app(base_settings.Settings(model=paths["model"], model_alias="tiny", **COMMON)))
    yield server
    server.proxy.free()


@pytest.fixture(scope="module")
def ours(paths: dict[str, str]) -> Iterator[Server]:
    server = Server(create_app(Settings(**paths, model_alias="tiny", logits_all=True, **COMMON)))
    yield server
    server.proxy.free()


def bare(answer: Any) -> Any:
    """An answer without what differs by nature, and without timings."""
    if isinstance(answer, list):
        return [bare(event) for event in answer]
    return {k: v for k, v in answer.items() if k not in ("id", "created", "timings")}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.0, "stop": ["e"]},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "max_tokens": 1},
        {"temperature": 0.0, "grammar": 'root ::= [a-d ]+ "."'},
        {"temperature": 0.0, "min_tokens": 4, "logit_bias": {"32": -100.0}},
    ],
    ids=str,
)
def test_completions_are_those_of_llama_cpps_server(
    body: dict[str, Any], stream: bool, ours: Server, theirs: Server
) -> None:
    body = {"prompt": TEXT, "max_tokens": 40, "stream": stream, **body}
    if "min_tokens" in body:
        # llama_cpp loses both the minimum and the bias; ours heeds them
        biased = ours.post("/v1/completions", **body)
        text = "".join(e["choices"][0]["text"] for e in biased) if stream else biased["choices"][0]["text"]
        assert " " not in text
        return
    want, got = theirs.post("/v1/completions", **body), ours.post("/v1/completions", **body)
    assert differences(bare(want), bare(got)) == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"response_format": {"type": "json_object"}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "find"}}},
    ],
    ids=["plain", "logprobs", "json", "tools"],
)
def test_chats_are_those_of_llama_cpps_server(body: dict[str, Any], stream: bool, ours: Server, theirs: Server) -> None:
    body = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0.0, "stream": stream, **body}
    want, got = theirs.post("/v1/chat/completions", **body), ours.post("/v1/chat/completions", **body)
    assert differences(bare(want), bare(got)) == []


def test_models_and_extras_are_those_of_llama_cpps_server(ours: Server, theirs: Server) -> None:
    for method, path, body in (
        ("GET", "/v1/models", None),
        ("POST", "/extras/tokenize", {"input": "hello"}),
        ("POST", "/extras/tokenize/count", {"input": "hello"}),
        ("POST", "/extras/detokenize", {"tokens": [72, 101]}),
        ("POST", "/v1/completions", {"prompt": "x" * 600}),
    ):
        want, got = theirs.request(method, path, body), ours.request(method, path, body)
        assert (got.status_code, got.json()) == (want.status_code, want.json())


def test_every_other_route_is_llama_cpps_server_s(ours: Server, theirs: Server) -> None:
    want, got = (set(s.request("GET", "/openapi.json").json()["paths"]) for s in (theirs, ours))
    assert got == want | {"/metrics"}


def test_the_model_is_ours_and_drafts(ours: Server, theirs: Server) -> None:
    assert isinstance(ours.llm, Llama) and ours.llm.speculation.disabled_reason is None
    assert not isinstance(theirs.llm, Llama)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_ends_with_its_timings(path: str, stream: bool, ours: Server) -> None:
    prompt = {"prompt": TEXT} if path == "/v1/completions" else {"messages": MESSAGES}
    answer = ours.post(path, max_tokens=30, temperature=0.0, stream=stream, **prompt)
    if stream:
        assert all("timings" not in event for event in answer[:-1])
        answer = answer[-1]
    timings, last = answer["timings"], ours.llm.speculation.last
    assert timings["draft_n"] == last.draft_n > 0
    assert timings["draft_n_accepted"] == last.draft_n_accepted
    assert timings["predicted_n"] == 30
    assert timings["prompt_ms"] > 0 and timings["predicted_ms"] > 0 and timings["predicted_per_second"] > 0


def test_the_timings_count_what_the_usage_counts(ours: Server) -> None:
    """A token that ends the text was counted as one of it."""
    ends = {"logit_bias": {str(ours.llm.token_eos()): 100}, "max_tokens": 30}
    for body in ({"max_tokens": 7}, {"stop": ["at"], "max_tokens": 30}, ends):
        answer = ours.post("/v1/completions", prompt=TEXT, temperature=0.0, **body)
        assert answer["timings"]["predicted_n"] == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_request_may_set_its_own_draft_length(stream: bool, ours: Server) -> None:
    def post(**body: Any) -> Any:
        answer = ours.post("/v1/completions", prompt=TEXT, temperature=0.0, max_tokens=30, stream=stream, **body)
        return answer[-1] if stream else answer

    before = ours.llm.draft_n_max
    assert post(draft_n_max=0)["timings"]["draft_n"] == 0
    post(draft_n_max=2)
    assert ours.llm.speculation.last.n_drafted_at[1] > 0 == ours.llm.speculation.last.n_drafted_at[2]
    assert ours.llm.draft_n_max == before
    assert post()["timings"]["draft_n"] > 0


@pytest.mark.parametrize("bad", [-1, "two", 1.5, True])
def test_a_draft_length_that_is_none_is_refused(bad: Any, ours: Server) -> None:
    answer = ours.request("POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 2, "draft_n_max": bad})
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("draft_n_max is ")


def test_a_model_without_an_alias_is_its_files_name_in_the_metrics(paths: dict[str, str]) -> None:
    """Its whole path was."""
    server = Server(create_app(Settings(**paths, **COMMON)))
    name = Path(paths["model"]).name
    assert f'dspark_drafting{{model="{name}"}}' in server.metrics()
    server.proxy.free()


def test_metrics_count_what_the_timings_say(ours: Server) -> None:
    before = ours.metrics()
    timings = [ours.post("/v1/completions", prompt=TEXT, max_tokens=n)["timings"] for n in (5, 20)]
    ours.request("POST", "/v1/completions", {"prompt": "x" * 600})  # refused: nothing is generated
    after = ours.metrics()

    def grown(name: str, labels: str = '{model="tiny"}') -> float:
        return after[f"dspark_{name}_total{labels}"] - before.get(f"dspark_{name}_total{labels}", 0.0)

    assert grown("completions") == 2
    assert grown("predicted_tokens") == 25
    assert grown("prompt_tokens") == 2 * len(ours.llm.tokenize(TEXT.encode()))
    assert grown("draft_tokens") == sum(t["draft_n"] for t in timings)
    assert grown("draft_accepted_tokens") == sum(t["draft_n_accepted"] for t in timings)
    at_first = grown("draft_position_tokens", '{model="tiny",position="0"}')
    assert at_first == grown("draft_rounds") > 0
    assert after['dspark_drafting{model="tiny"}'] == 1


def test_a_stream_that_nobody_reads_on_does_not_keep_the_next_request_waiting(ours: Server) -> None:
    """It held its turn for a second: llama_cpp's server drops it half read, in a cycle of references."""
    stream = ours.llm.create_completion(TEXT, max_tokens=30, stream=True)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ours.llm.create_completion, TEXT, max_tokens=1).result()
    assert list(stream) == []


def test_a_stream_that_fails_ends_with_an_error(ours: Server) -> None:
    events = ours.post("/v1/completions", prompt="x" * 600, stream=True)
    assert len(events) == 1 and "exceed context window" in events[0]["error"]["message"]
    assert ours.post("/v1/completions", prompt=TEXT, max_tokens=2)["usage"]["completion_tokens"] == 2


def test_logits_are_kept_only_if_asked_for(paths: dict[str, str]) -> None:
    server = Server(create_app(Settings(**paths, **COMMON)))
    assert not server.llm._logits_all
    response = server.request("POST", "/v1/completions", {"prompt": TEXT, "logprobs": 2})
    assert response.status_code == 400
    assert "--logits_all true" in response.json()["error"]["message"]
    server.proxy.free()


def test_two_models_have_a_draft_each(paths: dict[str, str], converted: Callable[..., Path]) -> None:
    models = [
        ModelSettings(model=paths["model"], model_alias="plain", **COMMON),
        ModelSettings(**{**paths, "draft_n_max": 2}, model_alias="drafted", **COMMON),
        ModelSettings(**{**paths, "draft_n_max": 0}, model_alias="off", **COMMON),
    ]
    server = Server(create_app(server_settings=ServerSettings(), model_settings=models))
    assert [m["id"] for m in server.request("GET", "/v1/models").json()["data"]] == ["plain", "drafted", "off"]
    texts, drafted = [], []
    for name in ("plain", "drafted", "off", "drafted"):
        answer = server.post("/v1/completions", prompt=TEXT, max_tokens=20, temperature=0.0, model=name)
        texts.append(answer["choices"][0]["text"])
        drafted.append(answer["timings"]["draft_n"] > 0)
    assert len(set(texts)) == 1
    assert drafted == [False, True, False, True]
    metrics = server.metrics()
    assert [metrics[f'dspark_drafting{{model="{name}"}}'] for name in ("plain", "drafted", "off")] == [0, 1, 0]
    server.proxy.free()


def test_prompt_lookup_still_works(paths: dict[str, str]) -> None:
    settings = Settings(model=paths["model"], draft_model="prompt-lookup-decoding", draft_n_max=10, **COMMON)
    server = Server(create_app(settings))
    answer = server.post("/v1/completions", prompt=TEXT * 2, max_tokens=20, temperature=0.0)
    assert answer["timings"]["draft_n"] > 0
    server.proxy.free()


def test_an_api_key_guards_the_metrics(paths: dict[str, str]) -> None:
    server = Server(create_app(Settings(**paths, api_key="secret", **COMMON)))
    try:
        assert server.request("GET", "/metrics").status_code == 401
        assert server.request("GET", "/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
    finally:
        base_app.set_server_settings(base_settings.ServerSettings())
        server.proxy.free()


def test_a_bad_draft_of_any_model_is_found_at_start(paths: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(Path(paths["model"]).read_bytes())
    for draft, error, words in (
        (tmp_path / "none.gguf", FileError, "none.gguf"),
        (tmp_path / "other.gguf", FormatError, "qwen3"),
    ):
        models = [ModelSettings(**paths, **COMMON), ModelSettings(**{**paths, "draft": str(draft)}, **COMMON)]
        with pytest.raises(error, match=f"the draft of model .*{words}"):
            create_app(server_settings=ServerSettings(), model_settings=models)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"draft_model": "draft.gguf"}, "the path of a draft is given as draft"),
        ({"draft_model": "prompt-lookup-decoding", "draft": "d.gguf"}, "both given"),
        ({"draft": "d.gguf", "draft_hf_repo_id": "me/drafts"}, "hf_model_repo_id"),
        ({"draft_n_max": -1}, "greater than or equal to 0"),
        ({"confidence_min": 2}, "less than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(model="m.gguf", **settings)


def test_each_keyword_of_our_llama_is_a_setting_of_its_model() -> None:
    ours = set(inspect.signature(Llama.__init__).parameters) - {"self", "model_path", "kwargs"}
    assert ours <= set(ModelSettings.model_fields)
    assert ours - {"draft_model", "flash_attn"} == set(draft_arguments(ModelSettings(model="m", draft="d")))


def test_llama_cpps_own_server_stays_its_own(ours: Server) -> None:
    import llama_cpp
    import llama_cpp.server.model

    assert base_app.LlamaProxy is llama_cpp.server.model.LlamaProxy
    assert base_app.ModelSettings is base_settings.ModelSettings
    assert llama_cpp.server.model.llama_cpp is llama_cpp
    assert not issubclass(llama_cpp.Llama, Llama)
