"""Cut the beginning of a trajectory, from which another rollout continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.agent.contract import CallRecord
from treadle.agent.dialects.base import FRAME, Dialect, Segment, render
from treadle.agent.token_ids import ORIGIN_SAMPLED, Codec, keep_prefix
from treadle.core.answers.extraction import SYSTEM_KINDS


@dataclass(frozen=True, slots=True)
class Prefix:
    """Beginning of a trajectory to continue from: the state of an uninterrupted rollout at this point.

    `calls` are the calls whose outcome is part of the prefix. `pending` means that it ends with a call or an answer to
    which the episode has not reacted yet; a call at the end that is not pending was refused silently. `turn` is the
    number of the next turn or, if `pending`, of the turn that the episode reacts to next. `turn_starts` are the
    positions in `ids` at which the prefix's turns begin.
    """

    segments: tuple[Segment, ...]
    ids: tuple[int, ...]
    origins: tuple[int, ...]
    calls: tuple[CallRecord, ...]
    turn: int
    pending: bool
    turn_starts: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The context so far, after the prompt."""
        return render(self.segments)


def cut(
    segments: Sequence[Segment],
    ids: Sequence[int],
    origins: Sequence[int],
    calls: Sequence[CallRecord],
    num_segments: int,
    dialect: Dialect,
    codec: Codec | None,
) -> Prefix:
    """Return the first `num_segments` segments of a trajectory as a prefix, with the ids unchanged.

    If the boundary lies inside a token, the kept part of that token is encoded again. The calls are those of the kept
    segments. Raises ValueError if the trajectory has fewer segments.
    """
    if not 0 <= num_segments <= len(segments):
        raise ValueError(f"a trajectory of {len(segments)} segments cannot be cut after {num_segments}")
    kept = list(segments[:num_segments])
    if kept and kept[-1].kind == FRAME and ORIGIN_SAMPLED in origins[kept[-1].start : kept[-1].end]:
        kept.pop()  # the turn goes on, so its end does not belong to the prefix
    num_calls = sum(map(dialect.is_call, kept))
    pending = bool(kept) and dialect.is_acted_on(kept[-1])
    num_done = num_calls - 1 if pending and dialect.is_call(kept[-1]) else num_calls
    turn = calls[num_done - 1].turn + 1 if num_done else 0
    kept_ids: list[int] = []
    kept_origins: list[int] = []
    if codec is not None and kept:
        kept_ids, kept_origins = _keep_segment_ids(kept, ids, origins, codec)
        kept[-1] = Segment(kept[-1].kind, kept[-1].text, min(kept[-1].start, len(kept_ids)), len(kept_ids))
    return Prefix(tuple(kept), tuple(kept_ids), tuple(kept_origins), tuple(calls[:num_done]), turn, pending)


def _keep_segment_ids(
    kept: Sequence[Segment], ids: Sequence[int], origins: Sequence[int], codec: Codec
) -> tuple[list[int], list[int]]:
    end = kept[-1].end
    start = next((segment.end for segment in reversed(kept) if segment.kind in SYSTEM_KINDS), 0)
    text = render(kept[_index_after_last_system_segment(kept) :])
    part, part_origins, _ = keep_prefix(codec, list(ids[start:end]), list(origins[start:end]), text)
    return [*ids[:start], *part], [*origins[:start], *part_origins]


def _index_after_last_system_segment(segments: Sequence[Segment]) -> int:
    return max((index + 1 for index, segment in enumerate(segments) if segment.kind in SYSTEM_KINDS), default=0)
