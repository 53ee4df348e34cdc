"""Models fetched from a hub: one on loopback that speaks as much of the protocol as is needed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from treadle.core.engines import model_hub
from treadle.core.engines.export_model import BaseModelMissing, fetch_metadata_files
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


def test_model_is_downloaded_at_its_commit_without_foreign_files(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = fetch_model("org/base", "", key="rl.start")
    assert newest.name == COMMITS["main"] and names(newest) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert fetch_model("org/base", "v1", key="rl.start").name == COMMITS["v1"]
    del hub.files["model.safetensors"]
    monkeypatch.setitem(COMMITS, "main", "c" * 40)
    assert names(fetch_model("org/base", "", key="rl.start")) == ["config.json", "pytorch_model.bin", "tokenizer.json"]


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def index_of(names: list[str]) -> bytes:
    return json.dumps({"weight_map": {f"layer.{place}": name for place, name in enumerate(names)}}).encode()


def split(hub: type[Hub]) -> None:
    """Split the hub's model into two files with an index."""
    del hub.files["model.safetensors"]
    hub.files |= dict.fromkeys(SHARDS, b"weights") | {"model.safetensors.index.json": index_of(SHARDS)}


def test_downloads_the_weight_format_that_transformers_loads(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files |= {"consolidated.safetensors": b"other", "model.fp16.safetensors": b"other"}
    assert names(fetch_model("org/base", "", key="rl.start")) == ["config.json", "model.safetensors", "tokenizer.json"]
    split(hub)
    monkeypatch.setitem(COMMITS, "main", "c" * 40)
    small = ["config.json", "model.safetensors.index.json", "tokenizer.json"]
    assert names(fetch_model("org/base", "", key="rl.start")) == sorted([*SHARDS, *small])


def test_older_sharded_weights_are_downloaded_by_their_index(hub: type[Hub]) -> None:
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for name in ("model.safetensors", "pytorch_model.bin"):
        del hub.files[name]
    hub.files |= dict.fromkeys(shards, b"older") | {"pytorch_model.bin.index.json": index_of(shards)}
    assert set(shards) < set(names(fetch_model("org/base", "", key="rl.start")))


def test_weights_come_from_the_first_resolved_commit(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    split(hub)
    found = model_hub.weight_files

    def moving(folder: Path, *single: str) -> tuple[str, ...]:
        monkeypatch.setitem(COMMITS, "main", "c" * 40)
        return found(folder, *single)

    monkeypatch.setattr(model_hub, "weight_files", moving)
    folder = fetch_model("org/base", "", key="rl.start")
    assert folder.name == "a" * 40 and set(SHARDS) < set(names(folder))


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (None, None),
        (SHARDS[0], "1 of 2 weight files are missing .*" + SHARDS[0]),
        ("model.safetensors", "has no weights that transformers can load"),
    ],
)
def test_partially_downloaded_model_is_unusable_without_the_hub(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str | None, said: str | None
) -> None:
    if lost != "model.safetensors":
        split(hub)
    # As versions of the hub's library leave it that keep no list of what a commit holds.
    folder = tmp_path / "cache" / "models--org--base" / "snapshots" / COMMITS["main"]
    folder.mkdir(parents=True)
    for name in hub.files.keys() - {lost, "onnx/model.safetensors", "pytorch_model.bin"}:
        (folder / name).write_bytes(hub.files[name])
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(COMMITS["main"])
    # If a connection is refused, the library retries for half a minute.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if said is None:
        assert fetch_model("org/base", "", key="rl.start") == folder
        return
    with pytest.raises(EngineError, match=f"^rl.start = org/base .*{said}"):
        fetch_model("org/base", "", key="rl.start")


@pytest.mark.parametrize("listed", ["../../x.safetensors", "*.safetensors"])
def test_hub_index_may_only_name_files_in_its_folder(hub: type[Hub], listed: str) -> None:
    split(hub)
    hub.files["model.safetensors.index.json"] = index_of([listed])
    with pytest.raises(EngineError, match="ValueError: model.safetensors.index.json lists .* not a weight file"):
        fetch_model("org/base", "", key="rl.start")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(), "OSError"),
        (OSError(" \n "), "OSError"),
        (OSError("Gone. See https://x"), "OSError: Gone"),
        (OSError("\nno \x1b[2Jroute\nat all"), "OSError: no route"),
    ],
)
def test_hub_error_is_reported_in_one_sentence_even_without_a_message(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(EngineError, match=re.escape(f"cannot be fetched from the model hub ({said}); check")):
        fetch_model("org/base", "", key="rl.start")
    with pytest.raises(BaseModelMissing, match=f"^{type(error).__name__}"):
        fetch_metadata_files("org/base")


def test_missing_model_is_reported_with_its_key(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="rl.start = org/other cannot be fetched from the model hub"):
        fetch_model("org/other", "", key="rl.start")
    with pytest.raises(EngineError, match="RevisionNotFoundError.* check its name, its revision and the network"):
        fetch_model("org/base", "v2", key="rl.start")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(EngineError, match="rl.start = org/base cannot be fetched"):
        fetch_model("org/base", "v3", key="rl.start")


def test_repository_without_a_model_is_refused(hub: type[Hub]) -> None:
    hub.files = {"README.md": b"", "tokenizer.json": b"[]"}
    with pytest.raises(EngineError, match="rl.start = org/base has no config.json"):
        fetch_model("org/base", "v1", key="rl.start")
