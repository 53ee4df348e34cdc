"""Compute the difference between a trajectory and its parent, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import NamedTuple

from treadle.viewer.changes.trajectory_changes import ChangedSegment, SegmentRow, changes_between, folded
from treadle.viewer.changes.word_diff import WordRun, changed_words
from treadle.viewer.segments import call_kinds, style_of, without_markers

_MAX_SEGMENT_PAIRS = 300 * 300
"""Limit on the product of the numbers of segments of both sides."""
_SHOWN_CHARS = 16_000
_PAGE_CHARS = 600_000
_PAGE_BLOCKS = 5_000


@dataclass(frozen=True, slots=True)
class Block:
    """A segment that is the same on both sides, removed, or added."""

    side: str
    kind: str
    runs: list[WordRun]
    """Text of the segment, with changed words marked. The middle of a long text is left out."""
    num_chars: int
    style: str = "other"
    """CSS class; see `style_of`."""


class Difference(NamedTuple):
    """Difference between a trajectory and its parent."""

    num_steps: int
    """Number of whole steps at the beginning that are the same."""
    blocks: list[Block]
    num_left_out: int
    """Number of further blocks that do not fit on the page."""
    is_too_long: bool
    """Whether there are too many segments to compare."""


def difference(parent: Sequence[SegmentRow], edited: Sequence[SegmentRow]) -> Difference:
    """Compare two trajectories."""
    # Comparison takes (pairs × shorter side) time, and a model may write any number of segments.
    if len(parent) * len(edited) > _MAX_SEGMENT_PAIRS:
        return Difference(0, [], 0, True)
    changes = changes_between(parent, edited)
    kinds = call_kinds(parent) | call_kinds(edited)
    blocks = [replace(block, style=style_of(block.kind, kinds)) for block in _blocks(changes.pieces)]
    ends = accumulate(sum(len(run.text) for run in block.runs) for block in blocks[:_PAGE_BLOCKS])
    num_shown = sum(end <= _PAGE_CHARS for end in ends)
    return Difference(changes.num_steps, blocks[:num_shown], len(blocks) - num_shown, False)


def _blocks(pieces: Sequence[ChangedSegment]) -> list[Block]:
    blocks: list[Block] = []
    removed: list[ChangedSegment] = []
    # The empty group at the end flushes segments that were removed last and have no replacement.
    for side, group in [*folded(pieces), ("same", [])]:
        if side == "removed":
            removed = group
            continue
        blocks += _replaced(removed, group) if side == "added" else map(_block, (*removed, *group))
        removed = []
    return blocks


def _replaced(removed: Sequence[ChangedSegment], added: Sequence[ChangedSegment]) -> list[Block]:
    """Return blocks for segments that replace others. Those of the same kind are paired and compared by word."""
    pairs = list(takewhile(lambda pair: pair[0].kind == pair[1].kind, zip(removed, added, strict=False)))
    blocks = [block for first, second in pairs for block in _pair(first, second)]
    return blocks + [_block(piece) for piece in (*removed[len(pairs) :], *added[len(pairs) :])]


def _pair(first: ChangedSegment, second: ChangedSegment) -> tuple[Block, Block]:
    texts = _inner(first), _inner(second)
    runs = changed_words(*texts) if max(map(len, texts)) <= _SHOWN_CHARS else None
    if runs is None:
        return _block(first), _block(second)
    return (
        Block("removed", first.kind, runs[0], len(texts[0])),
        Block("added", second.kind, runs[1], len(texts[1])),
    )


def _block(piece: ChangedSegment) -> Block:
    text = _inner(piece)
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS // 2]}\n…\n{text[-_SHOWN_CHARS // 2 :]}"
    return Block(piece.side, piece.kind, [WordRun(shown, False)], len(text))


def _inner(piece: ChangedSegment) -> str:
    return without_markers({"kind": piece.kind, "text": piece.text})[0]
