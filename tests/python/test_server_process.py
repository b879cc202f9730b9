"""`python -m dspark_cpp.server` as a process of its own, talked to by the openai client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="the package openai is missing")
pytest.importorskip("fastapi", reason="the server's packages are missing (pip install 'dspark-cpp-python[server]')")
pytest.importorskip("sse_starlette", reason="the server's packages are missing")
pytest.importorskip("prometheus_client", reason="the server's packages are missing")

TEXT = "The lighthouse at the end of the "
MESSAGES: Any = [{"role": "user", "content": "Tell me of the lighthouse."}]


class Process:
    """A running server; its messages are kept."""

    def __init__(self, *arguments: object, module: str = "dspark_cpp.server", **env: str) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONUNBUFFERED": "1", **env}
        command = [sys.executable, "-m", *module.split(), *map(str, arguments)]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output: list[str] = []
        self.url = ""
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            found = re.search(r"Uvicorn running on (http://[\d.:]+)", line)
            if found:
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def client(self) -> Any:
        assert self._listening.wait(60) and self.url, "".join(self.output)
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self._reader.join(5)


@pytest.fixture(scope="module")
def settings(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> dict[str, Any]:
    return {
        "model": str(tiny_path("target-qwen3")),
        "draft": str(converted("deepspec-qwen3-vanilla")),
        "draft_n_max": 31,
        "n_ctx": 512,
        "n_threads": 1,
        "n_threads_batch": 1,
        "verbose": False,
        "type_k": 0,
        "type_v": 0,
    }


@pytest.fixture(scope="module")
def server(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    chat = {**settings, "chat_format": "chatml-function-calling", "model_alias": "chat", "logits_all": True}
    plain = {k: v for k, v in settings.items() if not k.startswith("draft")} | {"model_alias": "plain"}
    config = tmp_path_factory.mktemp("server") / "config.json"
    config.write_text(json.dumps({"host": "127.0.0.1", "port": 0, "models": [chat, plain]}))
    process = Process("--config_file", config)
    yield process
    code = process.interrupt()
    assert code == 0 and "Traceback" not in "".join(process.output), "".join(process.output)


@pytest.fixture
def client(server: Process) -> Any:
    return server.client()


def test_the_openai_client_completes_and_finds_the_draft_counts(client: Any) -> None:
    answers = [
        client.completions.create(model=name, prompt=TEXT, max_tokens=30, temperature=0.0) for name in ("chat", "plain")
    ]
    assert answers[0].choices[0].text == answers[1].choices[0].text
    assert answers[0].usage == answers[1].usage
    assert answers[0].timings["draft_n"] > 0 == answers[1].timings["draft_n"]
    assert {model.id for model in client.models.list()} == {"chat", "plain"}


def test_the_openai_client_streams_chats_calls_tools_and_reads_logprobs(client: Any) -> None:
    chat: Any = {"model": "chat", "messages": MESSAGES, "max_tokens": 25, "temperature": 0.0}
    whole = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
    chunks = list(client.chat.completions.create(**chat, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].timings["draft_n"] > 0
    assert len(whole.choices[0].logprobs.content) > 5
    tool = {"name": "find", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    called = client.chat.completions.create(
        **{**chat, "max_tokens": 60},
        tools=[{"type": "function", "function": tool}],
        tool_choice={"type": "function", "function": {"name": "find"}},
    )
    call = called.choices[0].message.tool_calls[0].function
    assert call.name == "find" and isinstance(json.loads(call.arguments), dict)


def metric(server: Process, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        found = re.search(rf'^dspark_{name}_total{{model="chat"}} (.*)$', response.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_stream_left_early_is_counted_and_leaves_a_server_that_serves(client: Any, server: Process) -> None:
    want = client.completions.create(model="chat", prompt=TEXT, max_tokens=30, temperature=0.0).choices[0].text
    for n in (1, 4):
        before = metric(server, "completions"), metric(server, "draft_tokens")
        with client.completions.create(model="chat", prompt=TEXT, max_tokens=300, stream=True) as stream:
            for _, _chunk in zip(range(n), stream, strict=False):
                pass
        again = client.completions.create(model="chat", prompt=TEXT, max_tokens=30, temperature=0.0)
        assert again.choices[0].text == want
        after = metric(server, "completions"), metric(server, "draft_tokens")
        assert after[0] == before[0] + 2 and after[1] > before[1] + again.timings["draft_n"]


def test_a_request_interrupts_a_stream_as_in_llama_cpps_server(client: Any) -> None:
    stream = client.completions.create(model="chat", prompt=TEXT, max_tokens=450, temperature=0.0, stream=True)
    next(stream)
    other = client.completions.create(model="plain", prompt="And", max_tokens=3, temperature=0.0)
    assert other.usage.completion_tokens == 3
    rest = list(stream)
    assert len(rest) < 440 and all(chunk.choices[0].finish_reason is None for chunk in rest)


def test_clients_in_parallel_get_what_they_get_alone(client: Any) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(model="chat", prompt=TEXT, max_tokens=15, temperature=0.8, seed=seed)
        return str(answer.choices[0].text)

    want = [ask(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == want


def test_an_error_in_a_stream_reaches_the_client(client: Any) -> None:
    with pytest.raises(openai.APIError, match="exceed context window"):
        list(client.completions.create(model="chat", prompt="x" * 600, stream=True))


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for another process on Windows")
def test_ctrl_c_ends_a_server_that_generates_without_a_traceback(settings: dict[str, Any]) -> None:
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    process = Process("serve", *flags, "--host", "127.0.0.1", "--port", 0, "--n_ctx", 30000, module="dspark_cpp")
    client = process.client()
    failed: list[Any] = []

    def ask() -> None:
        try:
            client.completions.create(model="chat", prompt=TEXT, max_tokens=29000, logit_bias={"2": -100})
        except openai.APIError as exc:
            failed.append(exc)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1.0)  # it generates for minutes
    assert process.interrupt() == 0
    asking.join(20)
    assert [exc.status_code for exc in failed] == [503]
    assert "Traceback" not in "".join(process.output)


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--draft_nmax", "3"], 2, "unrecognized arguments: --draft_nmax 3; did you mean --draft_n_max?"),
        (["--draft-n-max", "3"], 2, "did you mean --draft_n_max?"),
        (["--draft_model", "d.gguf"], 2, "the path of a draft is given as draft"),
        (["--draft_n_max", "-2"], 2, "draft_n_max: Input should be greater than or equal to 0"),
        (["--draft", "nowhere.gguf"], 1, "nowhere.gguf"),
        (["--draft", "{model}"], 1, "the draft of model"),
        (["--config_file", "nowhere.json"], 2, "nowhere.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_server_that_cannot_start_says_why_in_one_line(
    arguments: list[str], code: int, words: str, settings: dict[str, Any]
) -> None:
    model = settings["model"]
    arguments = ["--model", model, "--verbose", "false", *(a.replace("{model}", model) for a in arguments)]
    process = Process(*arguments)
    assert process.process.wait(60) == code
    process._reader.join(5)
    (line,) = process.output
    assert line.startswith("python -m dspark_cpp.server: error: ") and words in line


def test_a_misspelled_key_of_a_config_file_gets_a_hint(settings: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"models": [{"model": settings["model"], "draft_nmax": 3}]}))
    process = Process("--config_file", config)
    assert process.process.wait(60) == 2
    process._reader.join(5)
    assert "models.0.draft_nmax is not a setting; did you mean draft_n_max?" in "".join(process.output)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("empty.json", "{}", "empty.json has no models, expected at least one"),
        ("typo.yaml", "models:\n- draft_nmax: 3\n  model: m.gguf\n", "draft_nmax is not a setting"),
        ("none.yml", "models:\n- n_ctx: 8\n", "no model is given (--model FILE.gguf)"),
    ],
)
def test_a_config_file_in_json_or_yaml_that_is_of_no_use_says_why(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    if not name.endswith(".json"):
        pytest.importorskip("yaml")
    config = tmp_path / name
    config.write_text(text)
    process = Process("--config_file", config)
    assert process.process.wait(60) == 2
    process._reader.join(5)
    assert words in "".join(process.output) and "Traceback" not in "".join(process.output)
