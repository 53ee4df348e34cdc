"""Options that `treadle prefect` passes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from treadle.cli.commands.prefect import prefect
from treadle.tasks import doctor
from treadle.tasks.prefect import automations, deployments, server


@pytest.mark.parametrize("command", ["up", "deploy"])
def test_the_notification_block_is_installed(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    @contextmanager
    def nothing_runs(*_: object) -> Iterator[SimpleNamespace]:
        ignore = lambda *_: None  # noqa: E731
        yield SimpleNamespace(env={}, ui_url="", api_url="", start_worker=ignore, watch=ignore)

    installed: list[str | None] = []
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "require_prefect", lambda url: None)
    monkeypatch.setattr(server, "running_server", nothing_runs)
    monkeypatch.setattr(deployments, "deploy", lambda *_: None)
    monkeypatch.setattr(automations, "install_automations", lambda block: installed.append(block) or [])
    done = CliRunner().invoke(prefect, [command, "--notify-block", "slack-webhook/x"], catch_exceptions=False)
    assert done.exit_code == 0 and installed == ["slack-webhook/x"]
