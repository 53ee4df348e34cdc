"""A stage that keeps its journal: what was paid for is known under other settings, on other machines, until forced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs.counting_stage import (
    CALLS,
    count,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)
from support.servers.object_machines import ADDRESS, on_machine

from treadle.core.errors import JobsPending
from treadle.core.runs.execute import execute, planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, StageContext


@pytest.fixture(params=["directory", "objects"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "root") if request.param == "directory" else str(request.getfixturevalue("object_root"))


@pytest.fixture
def run(root: str) -> Run:
    return Run.create(root, "r1", {}, {})


def keeping(body: Any = count, **settings: Any) -> Instance:
    instance = counting(body, **settings)
    return replace(instance, stage=replace(instance.stage, keeps_journal=True))


def test_journal_entries_are_reused_with_other_settings(run: Run) -> None:
    execute(keeping(count=3), run)
    record = execute(keeping(count=5), run)
    assert CALLS == [0, 1, 2, 3, 4] and not record.reused
    assert numbers_of(run) == [0, 1, 2, 3, 4]
    execute(keeping(count=2), run)
    assert CALLS == [0, 1, 2, 3, 4] and numbers_of(run) == [0, 1]
    assert run.status(ADDRESS).state == "completed"


def test_journal_entries_are_reused_on_another_machine(run: Run, root: str, tmp_path: Path) -> None:
    execute(keeping(count=3), run)
    other = on_machine(root, tmp_path / "other")
    execute(keeping(count=4), other)
    execute(keeping(count=5), run)
    assert CALLS == [0, 1, 2, 3, 4]


def test_failed_attempt_with_other_settings_counts(run: Run) -> None:
    def fail(context: StageContext) -> Mapping[str, Any]:
        count(context)
        raise JobsPending("owed")

    with pytest.raises(JobsPending):
        execute(keeping(fail, count=3), run)
    assert run.status(ADDRESS).num_finished == 3
    execute(keeping(count=2), run)
    assert CALLS == [0, 1, 2]


def test_force_discards_journal_entries(run: Run) -> None:
    execute(keeping(count=3), run)
    execute(keeping(count=3), run, force=True)
    assert CALLS == [0, 1, 2, 0, 1, 2]


def test_interrupted_forced_attempt_resumes_with_its_own_entries(run: Run) -> None:
    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    execute(keeping(count=2), run)
    with pytest.raises(KeyboardInterrupt):
        execute(keeping(cut_off, count=2), run, force=True)
    execute(keeping(count=2), run, force=True)
    assert CALLS == [0, 1, 1], "number 0 is what the forced attempt had recorded"


def test_forced_attempt_killed_at_its_start_finds_no_entries(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    execute(keeping(count=2), run)
    with monkeypatch.context() as patch:
        patch.setattr("treadle.core.runs.attempt.open_journal", killed)
        with pytest.raises(KeyboardInterrupt):
            execute(keeping(count=2), run, force=True)
    execute(keeping(count=2), run, force=True)
    assert CALLS == [0, 1, 0, 1]


def test_failed_forced_attempt_destroys_nothing(run: Run) -> None:
    def fail(context: StageContext) -> Mapping[str, Any]:
        raise JobsPending("the judge is down")

    execute(keeping(count=2), run)
    with pytest.raises(JobsPending):
        execute(keeping(fail, count=2), run, force=True)
    execute(keeping(count=3), run)
    assert CALLS == [0, 1, 2]


def test_only_one_journal_remains(run: Run) -> None:
    for _ in range(2):
        execute(keeping(count=2), run, force=True)
    execute(keeping(count=3), run)
    names = {key.split("/")[4] for key in run.storage.keys(run.key("journal"))}
    assert len(names) == 1


def test_other_stages_do_not_keep_their_journals(run: Run) -> None:
    execute(counting(count=3), run)
    execute(counting(count=5), run)
    assert CALLS == [0, 1, 2, 0, 1, 2, 3, 4]


def test_incomplete_result_is_rerun_until_complete(run: Run) -> None:
    missing = [2]

    def gap(context: StageContext) -> Mapping[str, Any]:
        context.write("numbers", [{"number": number} for number in range(3 - len(missing))])
        return {"missing": len(missing)}

    instance = keeping(gap)
    instance = replace(instance, stage=replace(instance.stage, is_complete=lambda metrics: not metrics["missing"]))
    assert not execute(instance, run).reused and planned_action(instance, run) == "run"
    assert not execute(instance, run).reused
    assert numbers_of(run) == [0, 1], "what there is is in force meanwhile"
    missing.clear()
    assert not execute(instance, run).reused
    assert execute(instance, run).reused and planned_action(instance, run) == "reuse"
    assert numbers_of(run) == [0, 1, 2]


def test_unfillable_gaps_keep_the_current_result(run: Run) -> None:
    is_down = [False]

    def gap(context: StageContext) -> Mapping[str, Any]:
        if is_down and not context.accept_failures:
            raise JobsPending("the judge is down")
        context.write("numbers", [{"number": len(is_down)}])
        return {"missing": len(is_down)}

    instance = keeping(gap)
    instance = replace(instance, stage=replace(instance.stage, is_complete=lambda metrics: not metrics["missing"]))
    with pytest.raises(JobsPending):
        execute(instance, run)
    execute(instance, run, accept_failures=True)
    assert execute(instance, run).reused
    status = run.status(ADDRESS)
    assert (status.state, status.gaps_state, status.forced_state) == ("completed", "failed", None)
    # There is no such result with other settings.
    with pytest.raises(JobsPending):
        execute(replace(instance, settings=instance.settings.model_copy(update={"count": 9})), run)
    is_down.clear()
    assert not execute(instance, run).reused and numbers_of(run) == [0]
    assert execute(instance, run).reused


def test_stage_that_keeps_its_journal_is_not_sharded(run: Run) -> None:
    with pytest.raises(ValueError, match="not divided"):
        replace(counting().stage, keeps_journal=True, num_shards=lambda settings: 2)
