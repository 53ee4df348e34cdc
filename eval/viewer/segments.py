"""A trajectory in the pieces that are shown: who wrote what, what became of calls, what a training learns from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from treadle.agent.protocol import RESULT, TOOL_PROTOCOL, tokenise
from treadle.agent.web.run_entries import shown_sources

KNOWN_KINDS = ("think", "search", "python", "result", "answer", "text")
_SHOWN_CHARS = 16_000
_PAGE_CHARS = 600_000
_PAGE_PIECES = 5_000
_BRIEF_CHARS = 400
_PREVIEW_CHARS = 160

Segment = Mapping[str, Any]
"""kind, text, start, end; the last two index token ids, or are equal where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A segment as it is shown."""

    place: int
    """Among the segments, from 0."""
    kind: str
    text: str
    """Without its markers, from the beginning, as far as it is shown."""
    tail: str
    """Its end, where the middle is left out."""
    num_chars: int
    """All of it."""
    is_unclosed: bool
    """Its closing marker is missing."""
    preview: str
    """The first line, or its beginning."""
    outcome: str
    """What became of a call; empty for other pieces, and where that is not known."""
    note: str
    num_tokens: int
    """0 where there are no ids."""
    num_targets: int | None
    """Of these, tokens that a training learns to write; None where that is not known."""
    sources: Sequence[str] = ()
    """Where the pages lie that a call met on the web."""

    @property
    def style(self) -> str:
        """The kind, where the style sheet knows it."""
        return self.kind if self.kind in KNOWN_KINDS else "other"

    @property
    def is_folded(self) -> bool:
        """Results are long and written by nobody that is looked at."""
        return self.kind == RESULT

    @property
    def mask(self) -> str:
        """all, some or none of it is learnt; empty where that is not known."""
        if self.num_targets is None or not self.num_tokens:
            return ""
        return "all" if self.num_targets == self.num_tokens else "some" if self.num_targets else "none"


def segments_of_text(text: str) -> list[dict[str, Any]]:
    """Segments of a turn of which only the text was kept."""
    return [{"kind": one.kind, "text": one.text, "start": 0, "end": 0} for one in tokenise(text)]


def pieces_of(
    segments: Sequence[Segment],
    calls: Sequence[Mapping[str, Any]] = (),
    targets: np.ndarray | None = None,
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> list[Piece]:
    """Pieces of a trajectory, the first 5,000: a page of more is slow to make and to look at.

    Args:
        segments: All of them.
        calls: Its ledger; only where it has an entry for each call in the text is it known which is whose.
        targets: Mask over its token ids: those that a training learns to write.
        addresses: Key of an entry of the web -> where its page lies, as far as that is known.
    """
    outcomes = _outcomes(segments, calls)
    left, pieces = _PAGE_CHARS, []
    for place, segment in enumerate(segments[:_PAGE_PIECES]):
        inner, is_unclosed = without_markers(segment)
        room = _SHOWN_CHARS if left > 0 else _BRIEF_CHARS
        text, tail = (inner, "") if len(inner) <= room else (inner[: room * 3 // 4], inner[-room // 4 :])
        left -= len(text) + len(tail)
        call = outcomes.get(place, {})
        start, end = segment["start"], segment["end"]
        pieces.append(
            Piece(
                place=place,
                kind=segment["kind"],
                text=text,
                tail=tail,
                num_chars=len(inner),
                is_unclosed=is_unclosed,
                preview=_preview(inner),
                outcome=call.get("status", ""),
                note=call.get("note", ""),
                num_tokens=end - start,
                num_targets=None if targets is None else int(targets[start:end].sum()),
                sources=shown_sources(call.get("sources", ()), addresses),
            )
        )
    return pieces


def without_markers(segment: Segment) -> tuple[str, bool]:
    """The text between a segment's markers, and whether the closing one is missing."""
    kind, text = segment["kind"], segment["text"].strip()
    if kind not in TOOL_PROTOCOL.by_name:
        return segment["text"].strip("\n"), False
    tag = TOOL_PROTOCOL.by_name[kind]
    inner = text.removeprefix(tag.opening)
    is_closed = inner.endswith(tag.closing)
    return inner.removesuffix(tag.closing).strip("\n"), not is_closed


def _outcomes(segments: Sequence[Segment], calls: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Place of a segment -> the entry of the ledger for the call in it."""
    places = [place for place, segment in enumerate(segments) if _is_call(segment)]
    if [segments[place]["kind"] for place in places] != [call["tool"] for call in calls]:
        return {}
    return dict(zip(places, calls, strict=True))


def _is_call(segment: Segment) -> bool:
    tag = TOOL_PROTOCOL.by_name.get(segment["kind"])
    return tag is not None and tag.is_tool and segment["text"].rstrip().endswith(tag.closing)


def _preview(text: str) -> str:
    line = " ".join(text[: 4 * _PREVIEW_CHARS].split())
    return line if len(line) <= _PREVIEW_CHARS else line[: _PREVIEW_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Stretch:
    """How much of a trajectory a piece takes, for the picture of its course; both are in thousandths."""

    style: str
    start: float
    width: float


def course_of(pieces: Iterable[Piece]) -> list[Stretch]:
    """Pieces side by side, as wide as they are long, short ones wide enough to be seen."""
    shown = list(pieces)
    sizes = np.array([max(piece.num_tokens or piece.num_chars / 4, 1) for piece in shown], float)
    widths = np.maximum(sizes / max(sizes.sum(), 1), 0.006)
    widths *= 1000 / max(widths.sum(), 1e-9)
    starts = np.cumsum(widths) - widths
    return [
        Stretch(piece.style, round(start, 1), round(width, 1))
        for piece, start, width in zip(shown, starts.tolist(), widths.tolist(), strict=True)
    ]
