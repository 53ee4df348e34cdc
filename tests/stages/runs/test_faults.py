"""A small run whose disk fails, or whose process ends, at every single step that it takes on the disk.

After each: nothing but one line for the user, the old state or the new one on the disk, and a following run that ends
with the same bytes as one that nothing disturbed. TREADLE_FAULT_STRIDE=1 tries every fault, the default every 29th.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.runs.crash_bench import artifact_files
from support.runs.faults import KILLED, KINDS, Disk, Fault, watched

from treadle.core.config import Section
from treadle.core.errors import StorageError, TreadleError
from treadle.core.journal.journal import Journal
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute, fingerprint_of
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import FINGERPRINT_DIGITS, Run, list_runs
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import Table

NUMBERS = Table("numbers", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Numbers.")
SQUARES = Table("squares", 1, ("number",), NUMBERS.schema, "Squares.")
TIMES = Table("times", 1, ("number",), NUMBERS.schema, "Times.", required=False)
OWNERS = [f"n{number}" for number in range(5)]
UNITS = ("llm-0", "tool-0")
ASKED: list[str] = []
"""Answers that cost something: what a journal has is not asked for again."""
STRIDE = int(os.environ.get("TREADLE_FAULT_STRIDE", "29"))
PARTS = 2


class Settings(Section):
    count: int


def ask(context: StageContext, owner: str, unit: str) -> bytes:
    """Return a costly answer: from the journal, or computed and recorded."""
    known = context.journal.get(owner, unit)
    if known is None:
        ASKED.append(f"{context.settings.count} {owner} {unit}")
        known = hashlib.sha256(f"{owner} {unit}".encode()).digest()
        context.journal.append(owner, unit, known)
    return known


def count(context: StageContext) -> Mapping[str, Any]:
    owners = OWNERS[: context.settings.count]
    for owner in owners:
        if not context.journal.is_finished(owner):
            context.journal.finish(owner, b"".join(ask(context, owner, unit) for unit in UNITS))
    for number, owner in enumerate(owners):
        value = int.from_bytes(context.journal.finished(owner)[:4], "big")
        context.write("numbers", [{"number": value * 100 + number}])
        context.write_telemetry("times", [{"number": number}])
    context.add_file("numbers", "note.md", b"Counted.\n")
    return {"count": len(owners)}


def square(context: StageContext) -> Mapping[str, Any]:
    for rows in context.inputs["numbers"]:
        context.write("squares", [{"number": row["number"] ** 2 % 2**61} for row in rows.rows()])
    return {}


COUNT = Stage(name="count", version=1, settings=Settings, produces=(NUMBERS,), telemetry=(TIMES,), run=count)
SQUARE = Stage(
    name="square", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(SQUARES,), run=square
)
COUNTING, SQUARING = Address(1, "count"), Address(1, "square")


def counting(number: int) -> Instance:
    return Instance(address=COUNTING, stage=COUNT, settings=Settings(count=number))


def work(root: Path) -> None:
    """Run the whole small run: two stages, then the first again with another setting, and again with force."""
    run = create_or_open_run(root, "r1", {"count": 5}, {"count": 5}, "count = 5\n")
    squares = Instance(address=SQUARING, stage=SQUARE, settings=Section(), inputs={"numbers": (COUNTING,)})
    execute(counting(2), run)
    execute(squares, run)
    execute(counting(5), run)
    execute(squares, run, force=True)


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals that begin new segments, and force them to disk when they are closed: always the same steps."""
    monkeypatch.setitem(Journal.__init__.__kwdefaults__, "segment_bytes", 300)
    monkeypatch.setitem(Journal.__init__.__kwdefaults__, "sync_interval_s", 3600.0)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Results and files of an undisturbed run."""

    steps: list[str]
    files: dict[str, str]
    digests: set[str]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: forcing thousands of files to a real disk takes long, and shows nothing more."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as name:
        yield Path(name)


@pytest.fixture
def undisturbed(folder: Path) -> Undisturbed:
    root = folder / "undisturbed"
    with watched(Disk(root)) as disk:
        work(root)
    check_tidy(root)
    return Undisturbed(disk.steps, artifact_files(root), {path.name for path in root.glob("artifacts/*/*")})


def faults_of(steps: list[str], stride: int) -> list[Fault]:
    """Every n-th of all faults of all steps."""
    return [Fault(at, kind) for at, step in enumerate(steps) for kind in KINDS[step.split()[0]]][::stride]


def suffer(root: Path, fault: Fault, steps: list[str]) -> None:
    """Work on a failing disk. A failure is reported in one line as a disk error; no partial write remains."""
    disk = Disk(root, fault)
    with watched(disk):
        try:
            work(root)
        except TreadleError as error:
            assert isinstance(error, StorageError), repr(error)
            assert "\n" not in str(error)
            assert fault.kind != "short"
    assert disk.steps[: fault.at + 1] == steps[: fault.at + 1]


def be_killed(root: Path, fault: Fault, steps: list[str]) -> None:
    """Work in a process of its own, which ends in the midst of it."""
    child = os.fork()
    if not child:
        try:
            suffer(root, fault, steps)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def check_states(root: Path, digests: set[str]) -> None:
    """Check that every file is complete and correct: the old version, the new one, or absent."""
    assert {path.name for path in root.glob("artifacts/*/[!.]*")} <= digests
    if list_runs(root) == []:
        return
    run = Run.open(root, "r1")
    assert run.config() == {"count": 5}
    assert not any(run.verify().values())
    for record in run.records():
        assert {ref.digest for ref in record.outputs.values()} <= digests
        assert all(list(run.rows(ref).rows()) for ref in record.outputs.values())
    for status in run.statuses():
        assert status.state in ("completed", "failed", "crashed")
        assert bool(status.num_rows) == (run.record(Address.parse(status.address)) is not None)
        assert status.num_rows or status.state != "completed"


def check_tidy(root: Path) -> None:
    """Check that the run is reported as finished and no work files remain."""
    assert {status.state for status in Run.open(root, "r1").statuses()} == {"completed"}
    assert not list(root.rglob(".tmp-*"))
    assert not list(root.glob("runs/r1/journal/*/*/*"))
    assert not list(root.glob("runs/r1/attempts/*/*/*/work"))


def recorded(root: Path) -> set[str]:
    """Answers that the journals hold."""
    found = set()
    for instance in (counting(2), counting(5)):
        folder = root / "runs/r1/journal/1/count" / fingerprint_of(instance, {})[:FINGERPRINT_DIGITS]
        if folder.exists():
            with Journal(folder) as journal:
                assert journal.num_damaged == 0
                for owner, unit in itertools.product(OWNERS, UNITS):
                    if journal.is_finished(owner) or journal.get(owner, unit) is not None:
                        found.add(f"{instance.settings.count} {owner} {unit}")
    return found


@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize("part", range(PARTS))
def test_disk_failure_at_any_step_costs_only_an_error_line(
    folder: Path, undisturbed: Undisturbed, part: int, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = faults_of(undisturbed.steps, STRIDE)
    for fault in faults[part::PARTS]:
        root = folder / f"{fault.at}-{fault.kind}"
        try:
            (be_killed if fault.kills else suffer)(root, fault, undisturbed.steps)
            check_states(root, undisturbed.digests)
            known = recorded(root)
            ASKED.clear()
            work(root)
            assert not known & set(ASKED), "asked again although its answer was in the journal"
            assert artifact_files(root) == undisturbed.files
            check_tidy(root)
            assert capfd.readouterr().err == ""
        except BaseException as error:
            error.add_note(f"{fault.kind} at step {fault.at}: {undisturbed.steps[fault.at]}")
            raise
        shutil.rmtree(root)
