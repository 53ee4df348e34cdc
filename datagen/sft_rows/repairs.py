"""Repair the thought markers of a trajectory, span by span, before the quality gate.

A span is what the model wrote between two tool results. If a span ends with a call or an answer, everything before that
becomes one closed thought, and empty thoughts are dropped. Calls, results and answers are unchanged. A span that needs
no repair keeps its ids; a repaired one is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.agent.dialects.base import RESULT, TEXT, Segment, render
from treadle.agent.dialects.tags import TagDialect, tokenise
from treadle.agent.token_ids import ORIGIN_REENCODED, Codec

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class RepairedTurn:
    """A repaired turn with its ids; `segments` are as in a rollout."""

    segments: list[Segment]
    ids: list[int]
    origins: list[int]

    @property
    def text(self) -> str:
        """The assistant turn as text."""
        return render(self.segments)


def repair_turn(
    segments: Sequence[Segment],
    ids: Sequence[int],
    origins: Sequence[int],
    codec: Codec | None,
    dialect: TagDialect,
) -> RepairedTurn | None:
    """Return the repaired turn; None if no span needs a repair. In text mode there are no ids and no codec."""
    repaired_turn = RepairedTurn([], [], [])
    changed = False
    for span in _spans(segments):
        new = span[0].kind != RESULT and _repaired_text(span, dialect)
        if new and new != render(span):
            changed = True
            _append_text(repaired_turn, new, codec, dialect)
        else:
            _append_as_is(repaired_turn, span, ids, origins)
    return repaired_turn if changed else None


def _spans(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    span: list[Segment] = []
    for segment in segments:
        if segment.kind == RESULT:
            if span:
                yield span
            yield [segment]
            span = []
        else:
            span.append(segment)
    if span:
        yield span


def _repaired_text(span: Sequence[Segment], dialect: TagDialect) -> str:
    """Return the span with one closed thought before its call or answer.

    The text is unchanged if the span ends with neither, or if no thought would remain.
    """
    *before, last = span
    text = render(span)
    if last.kind not in (*dialect.tools, dialect.answer) or any(
        segment.kind not in (TEXT, "think") for segment in before
    ):
        return text
    if _is_complete(before):
        return text
    thoughts = [segment.text.replace(_OPEN, "").replace(_CLOSE, "").strip() for segment in before]
    thought = "\n".join(filter(None, thoughts))
    return f"{_OPEN}{thought}{_CLOSE}{last.text}" if thought else text


def _is_complete(before: Sequence[Segment]) -> bool:
    """Return whether there is exactly one closed thought and otherwise only whitespace."""
    blocks = [segment for segment in before if segment.kind != TEXT or not segment.text.isspace()]
    return len(blocks) == 1 and blocks[0].text.startswith(_OPEN) and blocks[0].text.endswith(_CLOSE)


def _append_as_is(
    repaired_turn: RepairedTurn, span: Sequence[Segment], ids: Sequence[int], origins: Sequence[int]
) -> None:
    shift = len(repaired_turn.ids) - span[0].start
    repaired_turn.ids.extend(ids[span[0].start : span[-1].end])
    repaired_turn.origins.extend(origins[span[0].start : span[-1].end])
    for segment in span:
        repaired_turn.segments.append(Segment(segment.kind, segment.text, segment.start + shift, segment.end + shift))


def _append_text(repaired_turn: RepairedTurn, text: str, codec: Codec | None, dialect: TagDialect) -> None:
    if codec is None:
        repaired_turn.segments.extend(
            Segment(piece.kind, piece.text, 0, 0) for piece in tokenise(text, dialect, model_text=True)
        )
        return
    start = len(repaired_turn.ids)
    new = codec.encode(text)
    # Use the decoded ids, because a tokenizer may normalise characters.
    text = codec.decode(new)
    pieces = tokenise(text, dialect, model_text=True)
    ends = [*codec.counts_before(new, text, [piece.end for piece in pieces[:-1]]), len(new)]
    for piece, begin, end in zip(pieces, [0, *ends[:-1]], ends, strict=True):
        repaired_turn.segments.append(Segment(piece.kind, piece.text, start + begin, start + end))
    repaired_turn.ids.extend(new)
    repaired_turn.origins.extend([ORIGIN_REENCODED] * len(new))
