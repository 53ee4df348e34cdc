"""Servers that a run starts itself, with the tutor as the server."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from treadle.core.engines.config import TutorServer
from treadle.core.engines.serving import serve
from treadle.core.errors import ConfigError, EngineError


def test_started_server_responds_and_stops_with_its_context(tmp_path: Path) -> None:
    said: list[str] = []
    with serve(TutorServer(options={"latency_s": 0.01}), log_folder=tmp_path, notify=said.append) as served:
        body = json.dumps({"model": served.model, "prompt": "1", "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{served.url}/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            assert json.load(response)["choices"]
        assert served.child.poll() is None
    assert served.child.poll() is not None
    assert "answers at" in said[-1]


def test_server_that_rejects_its_options_raises_one_error_with_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"ended with code 2 before it was ready(.|\n)*--no-such-option"),
        serve(TutorServer(options={"no_such_option": True}), log_folder=tmp_path),
    ):
        pass


def test_server_that_never_responds_times_out(tmp_path: Path) -> None:
    settings = TutorServer(options={"faults": "500=1"}, startup_timeout_s=2.0)
    with (
        pytest.raises(EngineError, match=r"was not ready within 2 s"),
        serve(settings, log_folder=tmp_path),
    ):
        pass


def test_unknown_model_name_fails_immediately(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"refuses a completion of 'other'"),
        serve(TutorServer(), model_name="other", log_folder=tmp_path),
    ):
        pass


def test_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"), serve(TutorServer(port=port), log_folder=tmp_path):
            pass
