"""What the viewer is handed to tell where a trajectory comes from; `treadle.tasks`, which it cannot import, has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.core.runs import Run


class ChangedPiece(Protocol):
    """A segment of the difference between a trajectory and its parent."""

    @property
    def side(self) -> str:
        """same, removed or added."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the segment."""
        ...

    @property
    def text(self) -> str:
        """All of its text."""
        ...


class Changes(Protocol):
    """The difference between a trajectory and its parent."""

    @property
    def num_steps(self) -> int:
        """Whole steps at the beginning that are as in the parent."""
        ...

    @property
    def pieces(self) -> Sequence[ChangedPiece]:
        """What comes after them."""
        ...


Segments = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Kin:
    """How the viewer learns of lineage."""

    trace_back: Callable[[Run, str], Sequence[Mapping[str, Any]]]
    """Run and key of a trajectory or question -> steps from the source on, as `treadle lineage --json` prints them."""
    changes_between: Callable[[Segments, Segments], Changes]
    """Segments of the parent and of the edited trajectory -> their difference."""
