"""`treadle run` and `treadle stage` as flow runs. With a server: `tests/flows/test_deployments.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from treadle.cli.main import cli
from treadle.flows import flywheel
from treadle.tasks import doctor
from treadle.tasks.config import TreadleConfig
from treadle.tasks.prefect import flow_runs as prefect_flow_runs

CONFIG = """
[models.m]
model = "x"
endpoints = [{ url = "http://127.0.0.1:9/v1", api_key_env = "TEST_RUN_AS_FLOW_KEY" }]

[questions]
sources = [{ path = "questions.jsonl", dataset = "d", domain = "math" }]

[environment]
search.enabled = false
"""


@pytest.mark.parametrize("command", ["run", "stage"])
def test_secret_block_keys_are_available_before_preflight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "How much is 2 plus 3?", "answer": "5"}) + "\n")
    (tmp_path / "run.toml").write_text(CONFIG)
    begun: list[str | None] = []

    def flow(run_id: str, config: TreadleConfig, root: str, **_: Any) -> None:
        assert (run_id, list(config.models), root) == ("r", ["m"], str(tmp_path / "outputs"))
        begun.append(os.environ.get("TEST_RUN_AS_FLOW_KEY"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEST_RUN_AS_FLOW_KEY", "")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(doctor, "require_prefect", lambda url: None)
    monkeypatch.setattr(prefect_flow_runs, "_secret", {"test-run-as-flow-key": "from the block"}.get)
    monkeypatch.setattr(flywheel, "flywheel", flow)
    monkeypatch.setattr(flywheel, "stage", flow)
    given = [str(tmp_path / "run.toml"), "--run", "r", "--root", str(tmp_path / "outputs")]
    done = CliRunner().invoke(cli, [command, *(["1/questions"] if command == "stage" else []), *given])
    assert done.exit_code == 0, done.output
    assert begun == ["from the block"]
