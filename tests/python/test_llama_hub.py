"""from_pretrained() with huggingface_hub's own code, against a hub on this machine that serves two repositories."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("huggingface_hub", reason="the package huggingface-hub is missing")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Files = dict[str, dict[str, Path]]


class Hub(BaseHTTPRequestHandler):
    """What the client asks of a hub: a repository, the tree of its files, and a file."""

    repositories: Files
    downloads: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def _json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        return {
            "type": "file",
            "path": name,
            "size": path.stat().st_size,
            "oid": hashlib.sha1(name.encode()).hexdigest(),
        }

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+(?:/(.*))?", path):
            files, folder = self.repositories[found[1]], found[2] or ""
            entries = [self._entry(name, file) for name, file in files.items() if name.startswith(folder)]
            folders = {str(Path(name).parent) for name in files} - {"."}
            self._json([{"type": "directory", "path": name, "size": 0, "oid": COMMIT} for name in folders] + entries)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.*)?", path):
            siblings = [{"rfilename": name} for name in self.repositories[found[1]]]
            self._json(
                {"id": found[1], "modelId": found[1], "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}
            )
        elif (found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.*)", path)) and found[2] in self.repositories[
            found[1]
        ]:
            self._file(self.repositories[found[1]][found[2]], found[2])
        else:
            self._json({"error": f"no {path}"}, 404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        asked = json.loads(self.rfile.read(length) or b"{}")
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/paths-info/.*", unquote(urlsplit(self.path).path))
        files = self.repositories[found[1]] if found else {}
        self._json([self._entry(name, files[name]) for name in asked.get("paths", []) if name in files])

    def _file(self, path: Path, name: str) -> None:
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "HEAD":
            self.downloads.append(name)
            self.wfile.write(content)


@pytest.fixture
def hub(paths: tuple[str, str]) -> Iterator[ThreadingHTTPServer]:
    target, draft = map(Path, paths)

    class Handler(Hub):
        repositories: Files = {
            "some/model": {"model-f32.gguf": target, "drafts/own-draft.gguf": draft},
            "some/draft": {"draft.gguf": draft},
        }
        downloads: list[str] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


PROGRAM = """
import json, os, sys, warnings
os.environ.update(HF_ENDPOINT=sys.argv[1], HF_HOME=sys.argv[2], HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", DSPARK_KERNELS="off")
for name in ("HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
    os.environ.pop(name, None)
warnings.simplefilter("ignore")  # the base gives an argument that newer clients warn of
from dspark_cpp import Llama
llm = Llama.from_pretrained(
    "some/model", "model*.gguf", n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False, **json.loads(sys.argv[3])
)
llm("The lighthouse", max_tokens=8, temperature=0)
print(json.dumps([llm.model_path, getattr(llm.draft, "path", None), llm.speculation.last.draft_n]))
"""


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({}, None),
        ({"draft_filename": "drafts/*"}, "own-draft.gguf"),
        ({"draft_repo_id": "some/draft", "draft_filename": "*.gguf"}, "draft.gguf"),
        ({"draft_repo_id": "some/draft", "draft_filename": "*.gguf", "local_dir": "here"}, "draft.gguf"),
    ],
    ids=["no draft", "the same repository", "another repository", "a local folder"],
)
def test_from_pretrained_fetches_model_and_draft_from_a_hub_once(
    arguments: dict[str, str],
    wanted: str | None,
    hub: ThreadingHTTPServer,
    run_python: Callable[..., Any],
    tmp_path: Path,
) -> None:
    url = f"http://127.0.0.1:{hub.server_address[1]}"
    if "local_dir" in arguments:
        arguments = {**arguments, "local_dir": str(tmp_path / arguments["local_dir"])}
    for _ in range(2):  # the second time from the cache
        done = run_python(PROGRAM, url, tmp_path / "hf", json.dumps(arguments))
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        model, draft, draft_n = json.loads(done.stdout)
        assert Path(model).name == "model-f32.gguf" and model.startswith(str(tmp_path))
        assert (draft and Path(draft).name) == wanted and (draft_n > 0) == (wanted is not None)
    handler: Any = hub.RequestHandlerClass
    assert sorted(Path(name).name for name in handler.downloads) == sorted(
        ["model-f32.gguf", *([wanted] if wanted else [])]
    )
