"""Repair the thought markers of a trajectory, span by span, before the quality gate.

A span is what the model wrote between two tool results. If a span ends with a call or an answer, everything before that
becomes one closed thought, and empty thoughts are dropped. Calls, results and answers are unchanged. A span that needs
no repair keeps its ids; a repaired one is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.agent.dialect import RESULT, TEXT, TOOL_PROTOCOL, Protocol, Segment, render, tokenise
from treadle.agent.transcript import ORIGIN_REENCODED, Codec

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Mended:
    """A repaired turn with its ids; `segments` are as in a rollout."""

    segments: list[Segment]
    ids: list[int]
    origins: list[int]

    @property
    def text(self) -> str:
        """The assistant turn as text."""
        return render(self.segments)


def mend(
    segments: Sequence[Segment],
    ids: Sequence[int],
    origins: Sequence[int],
    codec: Codec | None,
    protocol: Protocol = TOOL_PROTOCOL,
) -> Mended | None:
    """Return the repaired turn; None if no span needs a repair. In text mode there are no ids and no codec."""
    mended = Mended([], [], [])
    changed = False
    for stretch in _stretches(segments):
        new = stretch[0].kind != RESULT and _mended_text(stretch, protocol)
        if new and new != render(stretch):
            changed = True
            _append_text(mended, new, codec, protocol)
        else:
            _append_as_is(mended, stretch, ids, origins)
    return mended if changed else None


def _stretches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    stretch: list[Segment] = []
    for segment in segments:
        if segment.kind == RESULT:
            if stretch:
                yield stretch
            yield [segment]
            stretch = []
        else:
            stretch.append(segment)
    if stretch:
        yield stretch


def _mended_text(stretch: Sequence[Segment], protocol: Protocol) -> str:
    """Return the span with one closed thought before its call or answer.

    The text is unchanged if the span ends with neither, or if no thought would remain.
    """
    *before, last = stretch
    text = render(stretch)
    if last.kind not in (*protocol.tools, protocol.answer) or any(
        segment.kind not in (TEXT, "think") for segment in before
    ):
        return text
    if _is_whole(before):
        return text
    thoughts = [segment.text.replace(_OPEN, "").replace(_CLOSE, "").strip() for segment in before]
    thought = "\n".join(filter(None, thoughts))
    return f"{_OPEN}{thought}{_CLOSE}{last.text}" if thought else text


def _is_whole(before: Sequence[Segment]) -> bool:
    """Return whether there is exactly one closed thought and otherwise only whitespace."""
    blocks = [segment for segment in before if segment.kind != TEXT or not segment.text.isspace()]
    return len(blocks) == 1 and blocks[0].text.startswith(_OPEN) and blocks[0].text.endswith(_CLOSE)


def _append_as_is(mended: Mended, stretch: Sequence[Segment], ids: Sequence[int], origins: Sequence[int]) -> None:
    shift = len(mended.ids) - stretch[0].start
    mended.ids.extend(ids[stretch[0].start : stretch[-1].end])
    mended.origins.extend(origins[stretch[0].start : stretch[-1].end])
    for segment in stretch:
        mended.segments.append(Segment(segment.kind, segment.text, segment.start + shift, segment.end + shift))


def _append_text(mended: Mended, text: str, codec: Codec | None, protocol: Protocol) -> None:
    if codec is None:
        mended.segments.extend(
            Segment(piece.kind, piece.text, 0, 0) for piece in tokenise(text, protocol, model_text=True)
        )
        return
    start = len(mended.ids)
    new = codec.encode(text)
    # Use the decoded ids, because a tokenizer may normalise characters.
    text = codec.decode(new)
    pieces = tokenise(text, protocol, model_text=True)
    ends = [*codec.counts_before(new, text, [piece.end for piece in pieces[:-1]]), len(new)]
    for piece, begin, end in zip(pieces, [0, *ends[:-1]], ends, strict=True):
        mended.segments.append(Segment(piece.kind, piece.text, start + begin, start + end))
    mended.ids.extend(new)
    mended.origins.extend([ORIGIN_REENCODED] * len(new))
