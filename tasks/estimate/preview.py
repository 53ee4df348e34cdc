"""Preview the inputs of a flow's instances: questions cost nothing, so they are made in advance and counted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from treadle.core.errors import TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Rows
from treadle.tasks.estimate.reuse import Reuse, reuse_of
from treadle.tasks.planning.plan import PlannedStep


@dataclass(frozen=True, slots=True)
class Preview:
    """Inputs and finished work that a run would find when its instances start."""

    questions: Mapping[str, Rows]
    """Address of an instance that would make questions -> these questions."""
    reuses: Mapping[str, Reuse]
    """Address of an instance that would run -> how much of its work is finished."""


@contextmanager
def preview(
    instances: Sequence[Instance], steps: Sequence[PlannedStep], run: Run | None, *, force: bool
) -> Iterator[Preview]:
    """Yield the inputs and finished work that the planned steps would find; nothing is written to the run's root.

    Questions are made in a temporary folder that is deleted after the block. If no instance that would run has an
    earlier attempt, yields `EMPTY_PREVIEW`.
    """
    items = {str(item.address): item for item in instances}
    begun = [
        step
        for step in steps
        if step.action == "run"
        and run is not None
        and (item := items[step.address]).stage.jobs is not None
        and run.attempts(item.address)
    ]
    if run is None or not begun:
        yield EMPTY_PREVIEW
        return
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        counter = _Counter(items, steps, run)
        counter.make_questions(folder)
        yield Preview(counter.questions, counter.count(begun, force=force))


class _Counter:
    """Counter of the finished and open jobs of instances, which finds their input tables."""

    def __init__(self, items: Mapping[str, Instance], steps: Sequence[PlannedStep], run: Run) -> None:
        self._items, self._run = items, run
        self._steps = {step.address: step for step in steps}
        self.questions: dict[str, Rows] = {}

    def make_questions(self, folder: str) -> None:
        """Make the questions that the plan would make. Failures are ignored, because they recur in the run."""
        scratch = Run.create(folder, "preview", {}, {})
        for address, step in self._steps.items():
            if self._items[address].stage.name != "questions" or step.action != "run":
                continue
            try:
                record = execute(self._items[address], scratch)
                self.questions[address] = scratch.rows(record.outputs["questions"])
            except TreadleError:
                continue

    def count(self, steps: Sequence[PlannedStep], *, force: bool) -> dict[str, Reuse]:
        """Return the finished and open jobs of the instances that would run, by address."""
        found = {}
        for step in steps:
            item = self._items[step.address]
            inputs, unknown = self._inputs(item)
            if inputs is None:
                continue
            is_bound = all(self._is_kept(one) for producers in item.inputs.values() for one in producers)
            # A plan states only in `why` that a step is forced.
            is_forced = force and step.why.startswith("--force")
            reuse = reuse_of(item, self._run, None if is_bound else inputs, force=is_forced)
            if reuse is not None and unknown:
                reuse = Reuse(reuse.address, reuse.noun, reuse.num_jobs, 0, (f"{unknown} is run before it",))
            if reuse is not None:
                found[step.address] = reuse
        return found

    def _is_kept(self, producer: Address) -> bool:
        """Return whether an instance's current result is kept, so that the plan does not run it."""
        return str(producer) not in self._steps or self._steps[str(producer)].action == "reuse"

    def _inputs(self, item: Instance) -> tuple[dict[str, list[Rows]] | None, str]:
        """Return the input tables of an instance, and a producer whose result is unknown (empty if all are known).

        Returns None and an empty text if questions are unknown.
        """
        tables: dict[str, list[Rows]] = {}
        unknown = ""
        for name, producers in item.inputs.items():
            tables[name] = []
            for producer in producers:
                table = self._table(producer, item.stage.consumes[name])
                if table is not None:
                    tables[name].append(table)
                elif name == "questions":
                    return None, ""
                else:
                    unknown = str(producer)
        return tables, unknown

    def _table(self, producer: Address, kind: str) -> Rows | None:
        step = self._steps.get(str(producer))
        if step is not None and step.same:
            return self._table(Address.parse(step.same), kind)
        if step is not None and step.action == "run":
            return self.questions.get(str(producer))
        record: StageRecord | None = self._run.record(producer)
        try:
            return None if record is None or kind not in record.outputs else self._run.rows(record.outputs[kind])
        except TreadleError:
            return None


EMPTY_PREVIEW = Preview({}, {})
"""Preview of a run without attempts."""
