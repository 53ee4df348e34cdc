"""Decide which segments of a transcript a request still shows, once the context window gets too small for all of them.

A transcript is append-only. What a request shows of it is a context: some of the segments before the latest trim, then
all later ones. Each trim starts a new context. Each context is a training sample of its own, whose prompt holds the
earlier segments that it shows. So every sampled id belongs to one sample, after exactly the ids that the model saw.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.agent.dialects.base import Segment
from treadle.core.answers.extraction import SYSTEM_KINDS


@dataclass(frozen=True, slots=True)
class Trimming:
    """Rule by which a context is trimmed.

    Attributes:
        reserve_tokens: Tokens of the window that a turn needs; with fewer left, the context is trimmed.
        kept_kinds: Kinds of the segments that always stay.
    """

    reserve_tokens: int
    kept_kinds: frozenset[str]

    def kept(self, segments: Sequence[Segment], lengths: Sequence[int], room: int) -> list[int]:
        """Return the indices of the segments that stay, in ascending order.

        Segments of the kept kinds and those that the model has not read yet always stay. Of the others, the most recent
        stay, as long as all that stay fit in `room` tokens. `lengths` are the segments' lengths in tokens.
        """
        unread = num_read(segments)
        stays = [one.kind in self.kept_kinds or place >= unread for place, one in enumerate(segments)]
        room -= sum(itertools.compress(lengths, stays))
        for place in reversed(range(len(segments))):
            if stays[place]:
                continue
            room -= lengths[place]
            if room < 0:
                break
            stays[place] = True
        return [place for place, one in enumerate(stays) if one]


def num_read(segments: Sequence[Segment]) -> int:
    """Return the number of segments that the model has read: all before the results and messages at the end."""
    return next((place for place in range(len(segments), 0, -1) if segments[place - 1].kind not in SYSTEM_KINDS), 0)


@dataclass(frozen=True, slots=True)
class Context:
    """What requests show of a transcript, until it is trimmed again.

    Attributes:
        kept: Numbers of the earlier segments that are shown.
        num_segments: Number of segments before the part of the transcript that the context shows whole.
        num_ids: Number of ids before that part.
        num_turns: Number of turns before that part.
        ids: Ids of the kept segments, in the form that requests show.
        texts: Texts that are shown instead of those of earlier segments, by the number of the segment.
        num_left_out: Number of results and messages among the segments that are not shown.
    """

    kept: tuple[int, ...] = ()
    num_segments: int = 0
    num_ids: int = 0
    num_turns: int = 0
    ids: array[int] = field(default_factory=lambda: array("i"))
    num_left_out: int = 0
    texts: Mapping[int, str] = field(default_factory=dict)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of consecutive numbers."""
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield run[0], run[-1] + 1
