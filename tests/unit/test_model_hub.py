"""Models fetched from a hub: one on loopback that speaks as much of the protocol as is needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from treadle.core.engines.model_hub import fetch_model
from treadle.core.errors import EngineError

COMMITS = {"main": "a" * 40, "v1": "b" * 40}


class Hub(BaseHTTPRequestHandler):
    """A repository of the files in `files`, the same at each commit but for `config.json`."""

    files: dict[str, bytes] = {}

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, with_body: bool) -> None:
        status, headers, content = self._found()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def _found(self) -> tuple[int, dict[str, str], bytes]:
        path = self.path.partition("?")[0]
        if not path.removeprefix("/api/models").startswith("/org/base/"):
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if "/revision/" in path:
            commit = COMMITS.get(path.rpartition("/")[2])
            if commit is None:
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            names = [{"rfilename": name} for name in self.files]
            return 200, {}, json.dumps({"id": "org/base", "sha": commit, "siblings": names}).encode()
        if "/tree/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            return 200, {"Content-Type": "application/json"}, json.dumps(entries).encode()
        commit, _, name = path.partition("/resolve/")[2].partition("/")
        content = self.files[name]
        return 200, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}, content


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    Hub.files = {
        "config.json": b"{}",
        "tokenizer.json": b"[]",
        "model.safetensors": b"weights",
        "pytorch_model.bin": b"older",
        "model.gguf": b"other",
        "onnx/model.safetensors": b"other",
    }
    yield Hub
    server.shutdown()
    server.server_close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_model_is_fetched_whole_at_its_commit_and_what_is_for_other_programs_left_there(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = fetch_model("org/base", "", key="rl.start")
    assert newest.name == COMMITS["main"] and names(newest) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert fetch_model("org/base", "v1", key="rl.start").name == COMMITS["v1"]
    del hub.files["model.safetensors"]
    monkeypatch.setitem(COMMITS, "main", "c" * 40)
    assert names(fetch_model("org/base", "", key="rl.start")) == ["config.json", "pytorch_model.bin", "tokenizer.json"]


def test_a_model_that_is_not_there_is_told_with_its_key(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="rl.start = org/other cannot be fetched from the model hub"):
        fetch_model("org/other", "", key="rl.start")
    with pytest.raises(EngineError, match="RevisionNotFoundError.* check its name, its revision and the network"):
        fetch_model("org/base", "v2", key="rl.start")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EngineError, match="rl.start = org/base cannot be fetched"):
        fetch_model("org/base", "v3", key="rl.start")


def test_a_repository_without_a_model_is_refused(hub: type[Hub]) -> None:
    hub.files = {"README.md": b"", "tokenizer.json": b"[]"}
    with pytest.raises(EngineError, match="rl.start = org/base has no config.json"):
        fetch_model("org/base", "v1", key="rl.start")
