"""A stage instance runs once, resumes after anything, and leaves a record only when its result is complete."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from treadle.core.config import Operational, Section
from treadle.core.errors import ArtifactError, ConfigError, RolloutsOwed, RunError, StageFailed
from treadle.core.execute import execute, state_of
from treadle.core.runs import Run
from treadle.core.schemas import TABLES, Table
from treadle.core.stage import Address, Instance, Stage, StageContext

NUMBERS = Table("numbers", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Numbers.")
TIMES = Table("times", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Times.")


class Settings(Section):
    count: int = 3
    url: Operational[str] = "a"


def count(context: StageContext) -> Mapping[str, Any]:
    """Each number is worked out once, whatever happens to the attempts."""
    for number in range(context.settings.count):
        owner = f"n{number}"
        if not context.journal.is_finished(owner):
            CALLS.append(number)
            context.journal.finish(owner, str(number).encode())
    for number in range(context.settings.count):
        context.write("numbers", [{"number": int(context.journal.finished(f"n{number}"))}])
    context.write_telemetry("times", [{"number": context.attempt}])
    return {"count": context.settings.count}


def double(context: StageContext) -> Mapping[str, Any]:
    numbers = [row["number"] for rows in context.inputs["numbers"] for row in rows.rows()]
    context.write("doubles", [{"number": 2 * number} for number in numbers])
    return {}


DOUBLES = Table("doubles", 1, ("number",), NUMBERS.schema, "Doubles.")
CALLS: list[int] = []
COUNT = Stage(name="count", version=1, settings=Settings, produces=(NUMBERS,), telemetry=(TIMES,), run=count)
DOUBLE = Stage(
    name="double", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(DOUBLES,), run=double
)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def counting(body: Callable[[StageContext], Mapping[str, Any]] = count, **settings: Any) -> Instance:
    stage = Stage(name="count", version=1, settings=Settings, produces=(NUMBERS,), telemetry=(TIMES,), run=body)
    return Instance(address=Address(1, "count"), stage=stage, settings=Settings(**settings))


DOUBLING = Instance(
    address=Address(1, "double"), stage=DOUBLE, settings=Section(), inputs={"numbers": (Address(1, "count"),)}
)


def numbers_of(run: Run, address: str = "1/count", kind: str = "numbers") -> list[int]:
    record = run.record(Address.parse(address))
    assert record is not None
    return [row["number"] for row in run.rows(record.outputs[kind]).rows()]


def test_a_finished_instance_is_not_run_again(run: Run) -> None:
    assert state_of(counting(), run) == "run"
    first = execute(counting(), run)
    assert (first.reused, first.metrics, numbers_of(run), CALLS) == (False, {"count": 3}, [0, 1, 2], [0, 1, 2])
    assert state_of(counting(), run) == "reuse"
    again = execute(counting(url="b"), run)
    assert again.reused
    assert again.fingerprint == first.fingerprint
    assert CALLS == [0, 1, 2]
    assert run.record(Address(1, "count")) == first


def test_a_changed_setting_runs_it_again(run: Run) -> None:
    execute(counting(), run)
    assert state_of(counting(count=4), run) == "run"
    execute(counting(count=4), run)
    assert numbers_of(run) == [0, 1, 2, 3]


def test_a_changed_input_runs_it_again_and_an_equal_one_does_not(run: Run) -> None:
    execute(counting(), run)
    execute(DOUBLING, run)
    execute(counting(), run, force=True)
    assert execute(DOUBLING, run).reused
    execute(counting(count=2), run)
    assert not execute(DOUBLING, run).reused
    assert numbers_of(run, "1/double", "doubles") == [0, 2]


def test_a_missing_input_names_what_to_run_first(run: Run) -> None:
    assert state_of(DOUBLING, run) == "missing input"
    with pytest.raises(RunError, match="run 1/count first"):
        execute(DOUBLING, run)


def test_inputs_that_the_stage_does_not_read_are_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="reads \\['numbers'\\], bound are \\[\\]"):
        execute(Instance(address=Address(1, "double"), stage=DOUBLE, settings=Section()), run)


def test_a_lost_artifact_is_made_again(run: Run) -> None:
    record = execute(counting(), run)
    run.storage.delete(f"{record.outputs['numbers'].folder}/artifact.json")
    assert state_of(counting(), run) == "run"
    assert execute(counting(), run).outputs == record.outputs
    assert numbers_of(run) == [0, 1, 2]


@pytest.mark.parametrize("name", ["artifact.json", "part-00000.parquet"])
@pytest.mark.parametrize("damage", ["shorter", "empty", "longer", "gone"])
def test_an_artifact_of_other_sizes_is_made_again_and_not_reused(
    run: Run, tmp_path: Path, name: str, damage: str
) -> None:
    record = execute(counting(), run)
    path = tmp_path / record.outputs["numbers"].folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"shorter": content[:-9], "empty": b"", "longer": content + b"}"}[damage])
    assert state_of(counting(), run) == "run"
    assert not execute(counting(), run).reused
    assert path.read_bytes() == content
    assert state_of(counting(), run) == "reuse"


def test_a_result_made_from_an_older_input_is_pointed_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    execute(counting(), run)
    execute(DOUBLING, run)
    after = Instance(
        address=Address(1, "double", "twice"),
        stage=Stage(
            name="double", version=1, settings=Section, consumes={"numbers": "doubles"}, produces=(DOUBLES,), run=double
        ),
        settings=Section(),
        inputs={"numbers": (Address(1, "double"),)},
    )
    execute(after, run)
    assert "older" not in caplog.text
    execute(counting(count=2), run)
    execute(after, run)
    assert "1/double was made from an older 1/count; run 1/double again" in caplog.text


def test_a_failure_leaves_no_record_and_the_next_attempt_continues(run: Run) -> None:
    def fail_once(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise RolloutsOwed("2 rollouts are owed")

    with pytest.raises(RolloutsOwed, match="2 rollouts are owed"):
        execute(counting(fail_once), run)
    assert run.record(Address(1, "count")) is None
    status = run.status(Address(1, "count"))
    assert (status.state, status.error, status.num_finished) == ("failed", "2 rollouts are owed", 1)
    assert not list(run.storage.keys("artifacts"))
    record = execute(counting(), run)
    assert CALLS == [1, 2]
    assert record.attempt == 2
    assert run.status(Address(1, "count")).state == "completed"
    assert not list(run.storage.keys("runs/r1/journal"))


def test_a_bug_in_a_stage_becomes_one_line_and_a_traceback_in_the_log(run: Run) -> None:
    def stumble(context: StageContext) -> Mapping[str, Any]:
        raise ZeroDivisionError("nothing to divide by")

    with pytest.raises(StageFailed, match="1/count failed: ZeroDivisionError: nothing to divide by; the traceback"):
        execute(counting(stumble), run)
    log = run.storage.get("runs/r1/attempts/1/count/1/log.txt")
    assert log is not None and b"Traceback (most recent call last)" in log


def test_an_interrupt_is_recorded_and_passed_on(run: Run) -> None:
    def interrupt(context: StageContext) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(interrupt), run)
    assert run.status(Address(1, "count")).state == "interrupted"


def test_a_stage_that_makes_nothing_fails(run: Run) -> None:
    with pytest.raises(StageFailed, match="1/count made no rows of numbers"):
        execute(counting(count=0), run)
    assert run.record(Address(1, "count")) is None


def test_force_starts_from_nothing(run: Run) -> None:
    execute(counting(), run)
    CALLS.clear()
    record = execute(counting(), run, force=True)
    assert CALLS == [0, 1, 2]
    assert (record.reused, record.attempt) == (False, 2)


def test_force_does_not_take_up_what_an_unforced_attempt_left(run: Run) -> None:
    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(cut_off), run)
    execute(counting(), run, force=True)
    assert CALLS == [0, 1, 2]


def test_forcing_again_continues_a_forced_attempt_that_was_cut_off(run: Run) -> None:
    execute(counting(), run)

    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(cut_off), run, force=True)
    assert execute(counting(), run).reused
    CALLS.clear()
    execute(counting(), run, force=True)
    assert CALLS == [1, 2]


def test_a_forced_attempt_that_was_cut_off_leaves_the_result_in_force(run: Run) -> None:
    def cut_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        assert run.status(Address(1, "count")).state == "running"
        raise StageFailed("no more")

    def state() -> tuple[str, str | None, str | None, int]:
        status = run.status(Address(1, "count"))
        return status.state, status.forced_state, status.error, status.num_finished

    execute(counting(), run)
    with pytest.raises(StageFailed):
        execute(counting(cut_off), run, force=True)
    assert state() == ("completed", "failed", "no more", 1)
    attempt = run.attempts(Address(1, "count"))[-1]
    run.write_attempt(attempt.model_copy(update={"state": "running", "error": None}))
    assert state() == ("completed", "crashed", None, 1)
    execute(counting(), run, force=True)
    assert state() == ("completed", None, None, 0)
    # With other settings it is not the same result that would have been made again.
    with pytest.raises(StageFailed):
        execute(counting(cut_off, count=4), run, force=True)
    assert state() == ("failed", None, "no more", 1)


def test_a_killed_attempt_shows_as_crashed_and_is_continued(run: Run) -> None:
    """A kill leaves the attempt saying `running` with nobody holding its lease."""

    def leave_off(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        assert run.status(Address(1, "count")).state == "running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(counting(leave_off), run)
    (attempt,) = run.attempts(Address(1, "count"))
    run.write_attempt(attempt.model_copy(update={"state": "running", "finished_at": None, "error": None}))
    status = run.status(Address(1, "count"))
    assert (status.state, status.num_finished) == ("crashed", 1)
    left = run.storage.directory("runs/r1/attempts/1/count/1/work") / ".tmp-left"
    left.mkdir(parents=True)
    execute(counting(), run)
    assert CALLS == [1, 2]
    assert not list(run.storage.directory("").rglob(".tmp-*"))


def test_an_attempt_killed_after_its_record_is_tidied_up(run: Run) -> None:
    record = execute(counting(), run)
    (attempt,) = run.attempts(Address(1, "count"))
    run.write_attempt(attempt.model_copy(update={"state": "running"}))
    journal = run.storage.directory(run.journal_key(Address(1, "count"), record.fingerprint))
    journal.mkdir()
    assert run.status(Address(1, "count")).state == "completed"
    assert execute(counting(), run).reused
    assert not journal.exists()
    assert run.attempts(Address(1, "count"))[-1].state == "completed"


def test_two_at_once_are_refused(run: Run) -> None:
    def start_another(context: StageContext) -> Mapping[str, Any]:
        with pytest.raises(RunError, match="1/count of run r1 is being run by process"):
            execute(counting(), run)
        return count(context)

    execute(counting(start_another), run)


def test_telemetry_lies_beside_the_attempt_and_not_in_the_digest(run: Run) -> None:
    first = execute(counting(), run)
    second = execute(counting(), run, force=True)
    assert first.outputs == second.outputs
    assert second.telemetry == {"times": "runs/r1/attempts/1/count/2/times.parquet"}
    assert run.storage.exists(second.telemetry["times"])


def test_stage_logs_go_to_the_attempt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest-xdist cannot send a captured surrogate to its controller.
    monkeypatch.setattr(logging.getLogger("treadle"), "propagate", False)

    def speak(context: StageContext) -> Mapping[str, Any]:
        logging.getLogger("treadle.somewhere").info("heard \ud800")
        logging.getLogger("treadle.somewhere").info("\x1b]0;owned\x07\n2026-01-01 INFO forged: line")
        return count(context)

    before = logging.getLogger("treadle").handlers[:]
    execute(counting(speak), run)
    log = (run.storage.get("runs/r1/attempts/1/count/1/log.txt") or b"").decode()
    assert "heard \\ud800" in log
    assert "\x1b" not in log and "\n2026-01-01 INFO forged" not in log
    assert logging.getLogger("treadle").handlers == before


def test_a_result_whose_work_files_cannot_be_removed_is_a_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        record = execute(counting(), run)
    assert run.status(Address(1, "count")).state == "completed"
    assert list(run.storage.directory("").rglob(".tmp-deleted-work"))
    assert execute(counting(), run) == record.model_copy(update={"reused": True})
    assert not list(run.storage.directory("").rglob(".tmp-*"))
    assert not list(run.storage.keys("runs/r1/journal"))


def test_a_failure_behind_the_record_leaves_the_instance_completed(run: Run) -> None:
    execute(counting(), run)
    (attempt,) = run.attempts(Address(1, "count"))
    run.write_attempt(attempt.model_copy(update={"state": "failed", "error": "the disk is full"}))
    status = run.status(Address(1, "count"))
    assert (status.state, status.error) == ("completed", None)
    assert execute(counting(), run).reused
    (attempt,) = run.attempts(Address(1, "count"))
    assert (attempt.state, attempt.error) == ("completed", None)


def test_a_log_that_the_disk_does_not_take_says_nothing(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """`/dev/full` refuses every write."""

    def speak(context: StageContext) -> Mapping[str, Any]:
        (handler,) = (item for item in logging.getLogger("treadle").handlers if isinstance(item, logging.FileHandler))
        handler.setStream(open("/dev/full", "w", encoding="utf-8"))  # noqa: SIM115 - the handler closes it
        logging.getLogger("treadle").info("lost")
        return count(context)

    assert execute(counting(speak), run).metrics == {"count": 3}
    assert capfd.readouterr().err == ""


def test_an_input_of_another_table_version_is_refused_and_made_again_by_its_stage(run: Run) -> None:
    """What an older or a newer Treadle made is named, not misread; its own stage makes it again."""
    for version in (0, 2):
        other = replace(NUMBERS, version=version)
        made = execute(replace(counting(), stage=replace(counting().stage, produces=(other,))), run)
        with (
            known_as(NUMBERS),
            pytest.raises(
                ArtifactError, match=f"{made.outputs['numbers'].folder} holds table numbers in version {version}; this"
            ),
        ):
            execute(DOUBLING, run)
        assert not execute(counting(), run).reused
        with known_as(NUMBERS):
            execute(DOUBLING, run)
        assert numbers_of(run, "1/double", "doubles") == [0, 2, 4]
        CALLS.clear()


def known_as(table: Table) -> Any:
    return mock.patch.dict(TABLES, {table.kind: table})


def test_a_clock_that_is_set_back_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are ordered by number and results compared by fingerprint: later ones may bear earlier times."""
    years = itertools.count(2030, -1)
    for module in ("treadle.core.runs", "treadle.core.execute"):
        monkeypatch.setattr(f"{module}.utc_now", lambda: f"{next(years)}-01-01T00:00:00.000+00:00")

    def fail(context: StageContext) -> Mapping[str, Any]:
        context.journal.finish("n0", b"0")
        raise RolloutsOwed("owed")

    for _ in range(2):
        with pytest.raises(RolloutsOwed):
            execute(counting(fail), run)
    record = execute(counting(), run)
    assert CALLS == [1, 2]
    attempts = run.attempts(Address(1, "count"))
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert attempts[0].started_at > attempts[1].started_at > attempts[2].started_at > record.finished_at
    assert record.attempt == 3
    status = run.status(Address(1, "count"))
    assert (status.state, status.started_at) == ("completed", attempts[2].started_at)
    first = execute(DOUBLING, run)
    execute(counting(count=4), run)
    again = execute(DOUBLING, run)
    assert (again.reused, again.attempt) == (False, 2)
    assert again.finished_at < first.started_at
    assert numbers_of(run, "1/double", "doubles") == [0, 2, 4, 6]
    assert execute(DOUBLING, run).reused


def test_a_workspace_survives_a_failed_attempt_and_goes_with_the_work(tmp_path: Path) -> None:
    seen: list[bool] = []

    def work(context: StageContext) -> Mapping[str, Any]:
        state = context.workspace / "state"
        seen.append(state.exists())
        context.workspace.mkdir(parents=True, exist_ok=True)
        state.write_text("half")
        if len(seen) in (1, 3):
            raise StageFailed("cut off")
        return count(context)

    run = Run.create(tmp_path, "r", {}, {})
    with pytest.raises(StageFailed):
        execute(counting(work), run)
    execute(counting(work), run)
    with pytest.raises(StageFailed):
        execute(counting(work), run, force=True)
    execute(counting(work), run, force=True)
    execute(counting(work), run, force=True)
    assert seen == [False, True, False, True, False], "a forced run begins anew, and goes on where it was cut off"
    assert not list((tmp_path / "runs" / "r").rglob("state"))
