"""Flow runs that help: what they refuse, and what is shown of them. With a server: `tests/flows/test_scale_out.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.core.runs.test_shards import ADDRESS, Counting

from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute, planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Progress
from treadle.tasks import shard_worker as work
from treadle.tasks.catalog import instance, semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.secret_checks import key_variables
from treadle.tasks.prefect import helper_flow, helper_runs
from treadle.tasks.prefect.helper_flow import help_from_flow
from treadle.tasks.prefect.helper_runs import helped_by_workers
from treadle.tasks.prefect.ui_artifacts import artifact_key
from treadle.tasks.shard_worker import Helper


def test_worker_refuses_a_relative_root() -> None:
    with pytest.raises(ConfigError, match="'outputs' is relative to the working directory.*absolute folder"):
        help_from_flow("r1", str(ADDRESS), "outputs")


def test_worker_that_cannot_reach_the_run_names_run_and_root(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"r1.*{tmp_path}|{tmp_path}.*r1"):
        help_from_flow("r1", str(ADDRESS), str(tmp_path))


def test_workers_without_shards_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run.create(tmp_path, "r1", {}, {})
    assert helped_by_workers(Counting().instance(shards=4), run, 0) is None
    assert helped_by_workers(Counting().instance(shards=4), run, 2) is not None
    assert not caplog.records
    assert helped_by_workers(Counting().instance(shards=1), run, 2) is not None
    assert "flow.workers is 2, but no worker can join 1/count: it has one shard" in caplog.text


def test_no_workers_are_expected_if_an_equal_result_is_reused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, first = Run.create(tmp_path, "r1", {}, {}), Counting().instance(shards=1)
    execute(first, run)
    later = replace(first, address=replace(first.address, iteration=2))
    caplog.clear()
    assert helped_by_workers(later, run, 2) is not None
    assert planned_action(later, run) == "take over" and not caplog.records


@pytest.mark.parametrize(("server", "queue"), [("vllm", "gpu"), ("tutor", None)])
def test_workers_that_serve_a_model_use_the_gpu_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, queue: str | None
) -> None:
    asked: list[dict[str, Any]] = []

    def run_deployment(name: str, **more: Any) -> SimpleNamespace:
        asked.append(more)
        return SimpleNamespace(id=name)

    monkeypatch.setattr(helper_runs, "run_deployment", run_deployment)
    monkeypatch.setattr(helper_runs, "_cancel_unstarted", lambda _: None)
    config = TreadleConfig.model_validate(
        {"models": {"m": {"model": "m", "server": {"type": server}}}, "environment": {"search": {"enabled": False}}}
    )
    run = Run.create(tmp_path, "r1", {}, {})
    helped = helped_by_workers(instance(config, Address.parse("1/rollouts@m")), run, 2)
    assert helped is not None
    with helped(num_open=3):
        assert [(one["work_queue_name"], one["tags"]) for one in asked] == [
            (queue, ["treadle", "run:r1", "stage:rollouts"])
        ] * 2


def test_worker_has_labels_and_keys_like_other_flow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[set[str], str, str | None]] = []

    def begin_flow_run(config: TreadleConfig, run_id: str, instance: str | None = None) -> None:
        begun.append((key_variables(config), run_id, instance))

    monkeypatch.setattr(helper_flow, "begin_flow_run", begin_flow_run)
    endpoints = [{"url": "http://127.0.0.1:9/v1", "api_key_env": "MY_MODEL"}]
    sources = [{"path": "questions.jsonl", "dataset": "mine", "domain": "qa"}]
    config = TreadleConfig.model_validate(
        {"models": {"m": {"model": "m", "endpoints": endpoints}}, "questions": {"sources": sources}}
    )
    Run.create(tmp_path, "r1", config.model_dump(mode="json"), {})
    with pytest.raises(RunError, match="another configuration"):
        help_from_flow("r1", "1/rollouts@m", str(tmp_path))
    assert begun == [({"MY_MODEL"}, "r1", "1/rollouts@m")]


def test_helpers_wait_for_gpus_as_long_as_configured_and_log_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []

    def work_at(item: Any, run: Run, config: TreadleConfig, *, notify: Callable[[str], None], **_: Any) -> int:
        waits.append(config.flow.device_wait_s)
        notify(f"waits {config.flow.device_wait_s:g} s for a GPU")
        return 0

    models = {"m": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}}
    search = {"search": {"enabled": False}}
    config = TreadleConfig.model_validate(
        {"models": models, "environment": search, "flow": {"models": ["m"], "device_wait_s": 7}}
    )
    run = Run.create(tmp_path, "r1", config.model_dump(mode="json"), {})
    run.info = run.info.model_copy(update={"semantic": semantic_of(config)})
    (tmp_path / "runs/r1/run.json").write_text(run.info.model_dump_json())
    said: list[str] = []
    monkeypatch.setattr(work, "work_at", work_at)
    helper = Helper(
        root=tmp_path,
        run_id="r1",
        address="1/rollouts@m",
        overrides=["flow.device_wait_s=60"],
        show=lambda _: nullcontext(Progress()),
        notify=said.append,
    )
    helper.help_now()
    for name, instead in {
        "work_at": work_at,
        "begin_flow_run": lambda config, *_: config,
        "end_with_worker": lambda: None,
        "PrefectProgress": lambda *_: nullcontext(Progress()),
        "get_run_logger": lambda: logging.getLogger("treadle.of_flow_run"),
    }.items():
        monkeypatch.setattr(helper_flow, name, instead)
    with caplog.at_level(logging.INFO, "treadle.of_flow_run"):
        help_from_flow("r1", "1/rollouts@m", str(tmp_path))
    assert waits == [60, 7] and said == ["waits 60 s for a GPU"] and "waits 7 s for a GPU" in caplog.text


def test_artifact_keys_are_valid_for_prefect() -> None:
    assert artifact_key("work", "My_Run", "1/rollouts@base") == "work-my-run-1-rollouts-base"
