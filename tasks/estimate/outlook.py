"""What is known of a flow when its instances are estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.core.bound_inputs import bind_inputs
from treadle.core.errors import RunError
from treadle.core.execute import equal_result, fingerprint_of
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance


@dataclass(frozen=True, slots=True)
class Outlook:
    """A flow, its run so far, and which of its instances are going to be run."""

    instances: Sequence[Instance]
    run: Run | None
    """None where it is not begun."""
    to_run: frozenset[str]
    """Addresses."""
    force: bool

    def kept(self, producer: Address) -> StageRecord | None:
        """The result of an instance that is there, and stays, or that is taken over from an earlier iteration."""
        if self.run is None or str(producer) in self.to_run:
            return None
        if (record := self.run.record(producer)) is not None:
            return record
        item = next((one for one in self.instances if one.address == producer), None)
        try:
            return equal_result(item, self.run) if item is not None else None
        except RunError:
            return None

    def goes_on(self, item: Instance) -> str:
        """Fingerprint of the last attempt, if this one would go on with what it left; else empty."""
        if self.run is None or self.force:
            return ""
        attempts = self.run.attempts(item.address)
        try:
            same = attempts and attempts[-1].fingerprint == fingerprint_of(item, bind_inputs(item, self.run))
        except RunError:
            return ""
        return attempts[-1].fingerprint if same else ""

    def num_finished(self, item: Instance) -> int:
        """Units that an attempt which did not complete has finished, if this one would go on with them."""
        return self.run.status(item.address).num_finished if self.run is not None and self.goes_on(item) else 0
