"""Random histories of a stage instance against a model kept in memory: append, fail, crash, force, resume, complete.

TREADLE_HISTORIES sets their number (40).
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.core.config import Section
from treadle.core.errors import JobsPending
from treadle.core.journal.journal import Journal
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute, fingerprint_of
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import Table

HISTORIES = int(os.environ.get("TREADLE_HISTORIES", "40"))
PARTS = 2
ADDRESS = Address(1, "answers")
OWNERS = ("a", "b", "c")
UNITS = ("llm-0", "tool-0")
ROWS = Table(
    "answers",
    1,
    ("owner",),
    pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("owner", "text")]),
    "Answers.",
)


class Settings(Section):
    count: int


@dataclass(frozen=True, slots=True)
class Life:
    """One process at the instance: its settings, and how and after how many steps it ends, if it is stopped."""

    count: int
    force: bool
    end: Literal["completed", "failed", "interrupted", "crashed"]
    steps: int
    """Records and rows that it writes before that."""
    torn: int | None
    """Bytes that are missing from the record that it was writing when it crashed."""


LIVES = st.builds(
    Life,
    count=st.integers(1, len(OWNERS)),
    force=st.booleans(),
    end=st.sampled_from(["completed", "failed", "interrupted", "crashed", "crashed"]),
    steps=st.integers(1, 12),
    torn=st.none() | st.integers(1, 20),
)


@dataclass(slots=True)
class Model:
    """The expected state of the disk."""

    journals: dict[int, dict[tuple[str, str], str]] = field(default_factory=dict)
    """Setting -> what its journal holds; the unit of a final row is empty."""
    rows: list[dict[str, str]] = field(default_factory=list)
    """Of the result in force."""
    in_force: int = 0
    """Setting of the result in force; 0 if there is none."""
    forced: int = 0
    """Setting of the last attempt if that was forced and not completed, else 0."""
    attempts: int = 0
    state: str = "absent"


class Stopped(Exception):
    """The life is over here."""


@dataclass(slots=True)
class Steps:
    """Counts the steps of a life and ends it in the way that was chosen."""

    life: Life
    serial: Iterator[int]
    root: Path | None = None
    """The root of a real run, of which a crash leaves a copy as it is at that moment."""
    num_steps: int = 0

    def ask(self) -> str:
        """Return an answer of which no two are alike."""
        return f"answer {next(self.serial)}"

    def step(self) -> None:
        """One record or row has been written."""
        self.num_steps += 1
        if self.num_steps < self.life.steps or self.life.end == "completed":
            return
        if self.root is None or self.life.end == "crashed":
            if self.root is not None:
                shutil.copytree(self.root, self.root.with_name("crashed"))
            raise Stopped
        raise JobsPending("owed") if self.life.end == "failed" else KeyboardInterrupt


def answers(context: StageContext, steps: Steps) -> Mapping[str, Any]:
    owners, journal = OWNERS[: context.settings.count], context.journal
    for owner in owners:
        if journal.is_finished(owner):
            continue
        texts = []
        for unit in UNITS:
            known = journal.get(owner, unit)
            if known is None:
                known = steps.ask().encode()
                journal.append(owner, unit, known)
                steps.step()
            texts.append(known.decode())
        journal.finish(owner, ", ".join(texts).encode())
        steps.step()
    for owner in owners:
        context.write("answers", [{"owner": owner, "text": journal.finished(owner).decode()}])
        steps.step()
    return {}


def expect(model: Model, life: Life, steps: Steps) -> bool:
    """Let the model live the same life; whether its crash costs the record that it wrote last."""
    if not life.force and model.in_force == life.count:
        return False
    if life.force and model.forced != life.count:
        model.journals.pop(life.count, None)
    journal = model.journals.setdefault(life.count, {})
    model.attempts, model.state = model.attempts + 1, life.end
    last: tuple[str, str] | None = None
    try:
        for owner in OWNERS[: life.count]:
            for unit in (*UNITS, ""):
                last = None
                if (owner, "") not in journal and (owner, unit) not in journal:
                    texts = ", ".join(journal[owner, name] for name in UNITS) if not unit else steps.ask()
                    journal[owner, unit] = texts
                    last = owner, unit
                    steps.step()
        last = None
        for _ in range(life.count):
            steps.step()
    except Stopped:
        model.forced = life.count if life.force else 0
        if life.end != "crashed" or life.torn is None or last is None:
            return False
        del journal[last]
        return True
    model.rows = [{"owner": owner, "text": journal[owner, ""]} for owner in OWNERS[: life.count]]
    model.in_force, model.forced, model.state = life.count, 0, "completed"
    del model.journals[life.count]
    return False


def instance(count: int, steps: Steps | None = None) -> Instance:
    def run(context: StageContext) -> Mapping[str, Any]:
        assert steps is not None
        return answers(context, steps)

    stage = Stage(name="answers", version=1, settings=Settings, produces=(ROWS,), run=run)
    return Instance(address=ADDRESS, stage=stage, settings=Settings(count=count))


def live(root: Path, life: Life, serial: Iterator[int], *, torn: bool) -> None:
    """Live it on the disk. A crash leaves what was there in that moment, the last record cut."""
    run, steps = create_or_open_run(root, "r1", {}, {}), Steps(life, serial, root)
    what = instance(life.count, steps)
    try:
        execute(what, run, force=life.force)
    except (JobsPending, KeyboardInterrupt):
        return
    except Exception:
        if life.end != "crashed":
            raise
        shutil.rmtree(root)
        root.with_name("crashed").rename(root)
        if torn:
            folder = root / run.journal_key(ADDRESS, fingerprint_of(what, {}))
            last = max(folder.glob("*.journal"))
            os.truncate(last, last.stat().st_size - (life.torn or 0))


def check(root: Path, model: Model) -> None:
    run = Run.open(root, "r1")
    record = run.record(ADDRESS)
    assert (record is not None) == bool(model.in_force)
    if record is not None:
        assert not any(run.verify().values())
        assert list(run.rows(record.outputs["answers"]).rows()) == model.rows
    status = run.status(ADDRESS)
    # A result stays current while a forced attempt that would replace it is interrupted.
    cut_off = model.state if model.in_force and model.forced == model.in_force else None
    expected_state = "completed" if cut_off else model.state
    assert (status.state, status.forced_state, status.num_attempts) == (expected_state, cut_off, model.attempts)
    for count in range(1, len(OWNERS) + 1):
        what = instance(count)
        folder = root / run.journal_key(ADDRESS, fingerprint_of(what, {}))
        expected = model.journals.get(count, {})
        if not folder.exists():
            assert not expected
            continue
        with Journal(folder) as journal:
            assert journal.num_damaged == 0
            for owner, unit in itertools.product(OWNERS, UNITS):
                known = journal.get(owner, unit)
                assert (known and known.decode()) == (None if (owner, "") in expected else expected.get((owner, unit)))
            finished = {owner: journal.finished(owner).decode() for owner in journal.finished_owners()}
            assert finished == {owner: text for (owner, unit), text in expected.items() if not unit}


@pytest.mark.parametrize("part", range(PARTS))
@settings(deadline=None, max_examples=max(1, HISTORIES // PARTS), suppress_health_check=list(HealthCheck))
@given(lives=st.lists(LIVES, min_size=1, max_size=7))
def test_any_history_keeps_recorded_work_and_one_correct_result(part: int, lives: list[Life]) -> None:
    model, real, ideal = Model(), itertools.count(), itertools.count()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        root = Path(name) / "root"
        for life in (*lives, Life(len(OWNERS), False, "completed", 0, None)):
            torn = expect(model, life, Steps(life, ideal))
            live(root, life, real, torn=torn)
            check(root, model)
