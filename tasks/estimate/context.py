"""Collect what is known of a flow when its instances are estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.bound_inputs import bind_inputs
from treadle.core.runs.execute import equal_result, fingerprint_of
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Rows
from treadle.tasks.estimate.preview import EMPTY_PREVIEW, Preview


@dataclass(frozen=True, slots=True)
class EstimateContext:
    """A flow, its run so far, and the instances that are going to run."""

    instances: Sequence[Instance]
    run: Run | None
    """None if the run does not exist yet."""
    to_run: frozenset[str]
    """Addresses."""
    force: bool
    preview: Preview = EMPTY_PREVIEW
    """Inputs that were counted in advance."""

    def kept_record(self, producer: Address) -> StageRecord | None:
        """Return the result of an instance that will not run: its own, or an equal one of an earlier iteration."""
        if self.run is None or str(producer) in self.to_run:
            return None
        if (record := self.run.record(producer)) is not None:
            return record
        item = next((one for one in self.instances if one.address == producer), None)
        try:
            return equal_result(item, self.run) if item is not None else None
        except RunError:
            return None

    def resumed_fingerprint(self, item: Instance) -> str:
        """Return the fingerprint of the last attempt if this instance would resume it, else an empty string."""
        if self.run is None or self.force:
            return ""
        attempts = self.run.attempts(item.address)
        try:
            same = attempts and attempts[-1].fingerprint == fingerprint_of(item, bind_inputs(item, self.run))
        except RunError:
            return ""
        return attempts[-1].fingerprint if same else ""

    def tables(self, producers: Sequence[Address], kind: str) -> list[Rows] | None:
        """Return the tables that instances have made, or would make without cost; None if one is unknown."""
        found = []
        for producer in producers:
            table = self.preview.questions.get(str(producer)) if kind == "questions" else None
            if table is None and self.run is not None and (record := self.kept_record(producer)) is not None:
                table = self.run.rows(record.outputs[kind])
            if table is None:
                return None
            found.append(table)
        return found
