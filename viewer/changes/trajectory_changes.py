"""Compare an edited trajectory with its parent, segment by segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, Literal

Side = Literal["same", "removed", "added"]
SegmentRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangedSegment:
    """A segment that is in both trajectories, only in the parent, or only in the edited one."""

    side: Side
    kind: str
    text: str
    shared_chars: int = 0
    """Number of leading characters that its counterpart shares."""


@dataclass(frozen=True, slots=True)
class TrajectoryChanges:
    """Differences between an edited trajectory and its parent.

    Attributes:
        num_steps: Number of complete steps at the beginning that equal those of the parent.
        pieces: Segments after these steps.
    """

    num_steps: int
    pieces: tuple[ChangedSegment, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        pieces = [{"side": one.side, "kind": one.kind, "text": one.text} for one in self.pieces]
        return {"steps_as_in_parent": self.num_steps, "pieces": pieces}


def changes_between(parent: Sequence[SegmentRow], edited: Sequence[SegmentRow]) -> TrajectoryChanges:
    """Compare two trajectories by their segments."""
    before, after = ([(one["kind"], one["text"]) for one in side] for side in (parent, edited))
    shared = 0
    while shared < min(len(before), len(after)) and before[shared] == after[shared]:
        shared += 1
    # A step is complete only if it ends with a result.
    whole = max((index + 1 for index in range(shared) if before[index][0] == _RESULT), default=0)
    if shared == len(before) == len(after):
        whole = shared
    num_steps = sum(kind == _RESULT for kind, _ in before[:whole])
    return TrajectoryChanges(num_steps, tuple(_pieces(before[whole:], after[whole:])))


_RESULT = "result"


def _pieces(before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> list[ChangedSegment]:
    pieces: list[ChangedSegment] = []
    for what, start, end, new_start, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what == "equal":
            pieces += [ChangedSegment("same", kind, text) for kind, text in before[start:end]]
            continue
        removed, added = before[start:end], after[new_start:new_end]
        # For a segment that was continued, remember the shared prefix, so that only the new part is shown.
        shared = _shared(removed[0][1], added[0][1]) if removed and added and removed[0][0] == added[0][0] else 0
        for side, segments in (("removed", removed), ("added", added)):
            for index, (kind, text) in enumerate(segments):
                pieces.append(
                    ChangedSegment("added" if side == "added" else "removed", kind, text, 0 if index else shared)
                )
    return pieces


_MIN_SHARED_CHARS = 20


def _shared(first: str, second: str) -> int:
    """Return the length of the common prefix, or 0 if it is too short to be worth showing."""
    count = next((index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), None)
    count = min(len(first), len(second)) if count is None else count
    return count if count >= _MIN_SHARED_CHARS else 0


def folded(pieces: Sequence[ChangedSegment]) -> list[tuple[Side, list[ChangedSegment]]]:
    """Group consecutive pieces of the same side."""
    return [(side, list(run)) for side, run in groupby(pieces, key=lambda piece: piece.side)]
