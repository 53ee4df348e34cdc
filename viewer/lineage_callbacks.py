"""Define the lineage callbacks that the command line passes to the viewer, which cannot import `treadle.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.core.runs.run import Run


class ChangedSegmentProtocol(Protocol):
    """Segment in the difference between a trajectory and its parent."""

    @property
    def side(self) -> str:
        """One of "same", "removed" and "added"."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the segment."""
        ...

    @property
    def text(self) -> str:
        """Full text of the segment."""
        ...


class ChangesProtocol(Protocol):
    """Difference between a trajectory and its parent."""

    @property
    def num_steps(self) -> int:
        """Number of whole steps at the beginning that equal the parent's."""
        ...

    @property
    def pieces(self) -> Sequence[ChangedSegmentProtocol]:
        """Pieces after the common steps."""
        ...


Segments = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LineageCallbacks:
    """Lineage callbacks of the viewer."""

    trace_back: Callable[[Run, str], Sequence[Mapping[str, Any]]]
    """Run and key of a trajectory or question -> steps from the source on, as printed by `treadle lineage --json`."""
    changes_between: Callable[[Segments, Segments], ChangesProtocol]
    """Segments of the parent and of the edited trajectory -> their difference."""
