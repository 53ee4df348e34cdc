"""`treadle gc`: what is deleted, what is kept, and what an active process notices."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.counting_stage import (
    DOUBLES,
    DOUBLING,
    NUMBERS,
    count,
    counting,
    double,
    no_calls,  # noqa: F401 - an autouse fixture
    numbers_of,
)

from treadle.cli.commands.gc import gc
from treadle.core.config import Section
from treadle.core.gc import collection
from treadle.core.gc.collection import collect
from treadle.core.gc.garbage import plan_collection
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.store.artifacts import ArtifactWriter, verify_artifact
from treadle.core.store.storage import LocalStorage


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def garbage(run: Run) -> dict[str, str]:
    return {item.key: item.what for item in plan_collection(run.storage, -60).garbage}


def removed(run: Run) -> set[str]:
    return {item.key for item in collect(run.storage, -60).removed}


def folder_of(run: Run, address: str, kind: str) -> str:
    record = run.record(Address.parse(address))
    assert record is not None
    return record.outputs[kind].folder


def test_gc_keeps_artifacts_referenced_by_results_and_deletes_replaced_ones(run: Run) -> None:
    execute(counting(count=2), run)
    execute(DOUBLING, run)
    read = folder_of(run, "1/count", "numbers")
    execute(counting(count=4), run)
    assert garbage(run) == {}, "1/double was made from it"
    old = folder_of(run, "1/double", "doubles")
    execute(DOUBLING, run)
    assert removed(run) == {read, old}
    assert numbers_of(run, "1/double", "doubles") == [0, 2, 4, 6]
    assert run.verify() and not any(run.verify().values())
    assert garbage(run) == {}


def test_gc_plan_changes_nothing_and_recent_files_stay(run: Run) -> None:
    execute(counting(count=2), run)
    old = folder_of(run, "1/count", "numbers")
    execute(counting(count=3), run)
    assert set(garbage(run)) == {old}
    assert run.storage.exists(f"{old}/artifact.json")
    young = plan_collection(run.storage, 3600)
    assert (young.garbage, young.num_recent, young.num_artifacts_kept) == ([], 1, 1)
    assert collect(run.storage, 3600).removed == []
    assert run.storage.exists(f"{old}/artifact.json")


def test_gc_keeps_inputs_of_an_active_attempt_after_their_record_was_replaced(run: Run) -> None:
    execute(counting(count=2), run)
    read = folder_of(run, "1/count", "numbers")
    seen = []

    def slow(context: StageContext) -> Mapping[str, Any]:
        execute(counting(count=5), run)
        seen.append(removed(run))
        return double(context)

    stage = Stage(
        name="double", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(DOUBLES,), run=slow
    )
    execute(Instance(address=DOUBLING.address, stage=stage, settings=Section(), inputs=DOUBLING.inputs), run)
    assert seen == [set()]
    assert numbers_of(run, "1/double", "doubles") == [0, 2]
    assert garbage(run) == {}
    assert not verify_artifact(run.storage, run.record(DOUBLING.address).inputs["numbers"][0].artifact)  # type: ignore[union-attr]
    assert run.storage.exists(f"{read}/artifact.json")


def test_committing_garbage_again_does_not_race_with_gc(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(counting(count=2), run)
    old = folder_of(run, "1/count", "numbers")
    execute(counting(count=3), run)
    write, between = Run.write_record, []

    def write_record(self: Run, *arguments: Any) -> None:
        # The table was there already, so ours has been dropped: nothing names it yet.
        done = collect(run.storage, -60, max_wait_s=0)
        between.append([(item.key, why) for item, why in done.left])
        write(self, *arguments)

    monkeypatch.setattr(Run, "write_record", write_record)
    execute(counting(count=2), run)
    said = "a stage is committing its result, or another garbage collection is running; try again later"
    assert between == [[(old, said)]]
    assert numbers_of(run) == [0, 1]


def test_gc_plans_again_once_commits_have_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(counting(count=2), run)
    old = folder_of(run, "1/count", "numbers")
    execute(counting(count=3), run)
    plan = collection.plan_collection

    def plan_then_commit(*arguments: Any, **options: Any) -> Any:
        planned = plan(*arguments, **options)
        execute(counting(count=2), run)
        return planned

    monkeypatch.setattr(collection, "plan_collection", plan_then_commit)
    done = collect(run.storage, -60)
    assert [(item.key, why) for item, why in done.left] == [(old, "a record now references it")]
    assert numbers_of(run) == [0, 1]


def test_gc_deletes_instance_leftovers_but_keeps_files_of_the_next_attempt(run: Run) -> None:
    def stopped(context: StageContext) -> Mapping[str, Any]:
        context.workspace.mkdir(parents=True, exist_ok=True)
        (context.workspace / "state").write_bytes(b"s")
        context.scratch.joinpath("half").write_bytes(b"h")
        context.journal.finish("n0", b"0")
        raise KeyboardInterrupt

    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            execute(counting(stopped, count=number), run)
    one, two = (attempt.fingerprint[:12] for attempt in run.attempts(Address(1, "count")))
    gone = {f"runs/r1/workspaces/1/count/{one}": "workspace", "runs/r1/attempts/1/count/2/work": "work folder"}
    assert garbage(run) == gone, "answers that were paid for stay as long as there is no result"
    assert removed(run) == set(gone)
    execute(counting(count=3), run)
    assert garbage(run) == {
        f"runs/r1/journal/1/count/{one}": "journal",
        f"runs/r1/journal/1/count/{two}": "journal",
        f"runs/r1/workspaces/1/count/{two}": "workspace",
    }
    with pytest.raises(KeyboardInterrupt):
        execute(counting(stopped, count=2), run)
    assert removed(run) == {f"runs/r1/journal/1/count/{one}", "runs/r1/attempts/1/count/4/work"}
    execute(counting(count=2), run)
    assert numbers_of(run) == [0, 1]


def test_gc_deletes_nothing_of_an_active_instance(run: Run) -> None:
    seen = []

    def looking(context: StageContext) -> Mapping[str, Any]:
        context.workspace.mkdir(parents=True)
        (context.workspace / "state").write_bytes(b"s")
        context.scratch.joinpath("half").write_bytes(b"h")
        seen.append(removed(run))
        return count(context)

    execute(counting(looking), run)
    assert seen == [set()]


def test_gc_deletes_temporary_files_of_dead_processes_only(run: Run) -> None:
    root = Path(run.storage.location())
    dead, alive = (root / "artifacts" / f".tmp-{digit * 32}" for digit in "ab")
    folder = root / "artifacts" / "numbers" / f".tmp-{'c' * 32}"
    folder.mkdir(parents=True)
    dead.write_bytes(b"dead")
    doomed = root / "artifacts" / "numbers" / ".tmp-deleted-0123456789abcdef"
    doomed.mkdir()
    (doomed / "part-00000.parquet").write_bytes(b"p")

    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert removed(run) == {
            f"artifacts/{dead.name}",
            f"artifacts/numbers/{folder.name}",
            f"artifacts/numbers/{doomed.name}",
        }
    assert alive.exists() and not any(path.exists() for path in (dead, folder, doomed))


def test_gc_deletes_leftovers_of_a_deleted_run_but_keeps_orphaned_results(run: Run) -> None:
    for run_id in ("r2", "r3"):
        other = Run.create(run.storage.location(), run_id, {}, {})
        other.store("web").add("0" * 32, b"page")
        os.unlink(Path(run.storage.location(), "runs", run_id, "run.json"))
    execute(counting(), run)
    shutil.copytree(Path(run.storage.location(run.key("records"))), Path(run.storage.location("runs/r3/records")))
    plan = plan_collection(run.storage, -60)
    assert [(item.key, item.what) for item in plan.garbage] == [("runs/r2", "remains of a run")]
    assert "runs/r3/run.json is missing, but there are results" in plan.notes[0]
    assert removed(run) == {"runs/r2"}
    shutil.rmtree(Path(run.storage.location(run.key(""))))
    assert garbage(run) == {}, "r3 still names the artifact"


def test_damaged_record_keeps_all_artifacts(run: Run) -> None:
    execute(counting(count=2), run)
    old = folder_of(run, "1/count", "numbers")
    execute(counting(count=3), run)
    record = Path(run.storage.location(run.key("records/1/count.json")))
    record.write_bytes(record.read_bytes().replace(b'"count": 3', b'"count": 4'))
    plan = plan_collection(run.storage, -60)
    assert (plan.garbage, removed(run)) == ([], set())
    assert "records/1/count.json has changed since it was written" in plan.notes[0]
    assert run.storage.exists(f"{old}/artifact.json")


def test_gc_keeps_artifacts_made_on_request_or_named_in_a_config(run: Run) -> None:
    refs = []
    for number, made_by in enumerate(("export of run r0", "0" * 64, "1" * 64)):
        writer = ArtifactWriter(run.storage, NUMBERS, made_by=made_by)
        writer.write([{"number": number}])
        refs.append(writer.commit().folder)
    named = {"environment": {"search": {"web": {"recorded_in": f"/elsewhere/outputs/{refs[1]}"}}}}
    Run.create(run.storage.location(), "r2", named, named)
    assert garbage(run) == {refs[2]: "artifact"}
    assert f"{refs[0]} was created on request (export of run r0)" in plan_collection(run.storage, -60).notes[0]


def test_gc_command_shows_a_plan_and_deletes_on_request(run: Run) -> None:
    execute(counting(count=2), run)
    old = Path(run.storage.location(folder_of(run, "1/count", "numbers")))
    execute(counting(count=3), run)
    root = ["--root", run.storage.location()]
    early = CliRunner().invoke(gc, root, catch_exceptions=False)
    assert "nothing to delete" in early.output and "1 item (" in early.output and "too recently" in early.output
    for path in old.rglob("*"):
        os.utime(path, (0, 0))
    shown = CliRunner().invoke(gc, root, catch_exceptions=False)
    assert f"artifacts/numbers/{old.name}" in shown.output.replace("\n", "") and "no record" in shown.output
    assert "1 item can be deleted with --yes" in shown.output and old.exists()
    told = json.loads(CliRunner().invoke(gc, [*root, "--json", "--yes"], catch_exceptions=False).output)
    assert told["removed"] == [f"artifacts/numbers/{old.name}"] and told["garbage"][0]["why"].startswith("no record")
    assert not old.exists() and told["left"] == []
    assert "nothing to delete" in CliRunner().invoke(gc, root, catch_exceptions=False).output


STEPS = st.one_of(
    st.tuples(st.just("count"), st.integers(1, 3), st.sampled_from(["", "force", "fail", "collect", "crash"])),
    st.tuples(st.just("double"), st.just(0), st.sampled_from(["", "force", "fail", "collect", "collect and change"])),
    st.tuples(st.just("delete"), st.just(0), st.just("")),
    st.tuples(st.just("collect"), st.just(0), st.just("")),
)


@settings(max_examples=int(os.environ.get("TREADLE_HISTORIES", "20")))
@given(history=st.lists(st.tuples(st.sampled_from(["r1", "r2"]), STEPS), max_size=12))
def test_gc_deletes_exactly_the_unreachable_files_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, tuple[str, int, str]]]
) -> None:
    root = tmp_path_factory.mktemp("root")
    storage = LocalStorage(root)
    for run_id, (what, number, how) in history:
        if not storage.exists(f"runs/{run_id}/run.json"):
            Run.create(root, run_id, {}, {})
        run = Run.open(root, run_id)
        if what == "collect":
            collect(storage, -60)
        elif what == "delete":
            shutil.rmtree(root / "runs" / run_id)
        else:
            _live(run, what, number, how)
        for known in (Run.open(root, name) for name in storage.names("runs")):
            assert not any(known.verify().values())
            for record in known.records():
                assert all(
                    not verify_artifact(storage, ref.artifact) for refs in record.inputs.values() for ref in refs
                )
    collect(storage, -60)
    wanted = {
        ref.folder
        for run in (Run.open(root, name) for name in storage.names("runs"))
        for record in run.records()
        for ref in (*record.outputs.values(), *(one.artifact for refs in record.inputs.values() for one in refs))
    }
    there = {
        f"artifacts/{kind}/{name}" for kind in storage.names("artifacts") for name in storage.names(f"artifacts/{kind}")
    }
    assert there == wanted


class _Killed(BaseException):
    """Nothing of the process runs after it."""


def _live(run: Run, what: str, number: int, how: str) -> None:
    """One process at an instance, to its end of whatever kind."""

    def body(context: StageContext) -> Mapping[str, Any]:
        made = (count if what == "count" else double)(context)
        if how.startswith("collect"):
            if how == "collect and change":
                execute(counting(count=9), run)
            collect(run.storage, -60)
            if what == "double":
                double(ReadOnlyContext(context))
        if how == "fail":
            raise ValueError("as told")
        if how == "crash":
            raise _Killed
        return made

    if what == "count":
        instance = counting(body, count=number)
    else:
        stage = Stage(
            name="double", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(DOUBLES,), run=body
        )
        instance = Instance(address=DOUBLING.address, stage=stage, settings=Section(), inputs=DOUBLING.inputs)
    try:
        execute(instance, run, force=how == "force")
    except _Killed:
        (*_, attempt) = run.attempts(instance.address)
        run.write_attempt(attempt.model_copy(update={"state": "running", "error": None, "finished_at": None}))
    except Exception as error:  # noqa: BLE001
        assert how == "fail" or "run 1/count first" in str(error), error


class ReadOnlyContext:
    """A context that reads and writes nothing."""

    def __init__(self, context: StageContext) -> None:
        self.inputs = context.inputs

    def write(self, kind: str, rows: Any) -> None:
        """Nothing."""
