"""Split a trajectory into pieces for display: author, tool call status, and tokens that training learns from."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from treadle.agent.dialects.base import FRAME, PRIVATE, REASONING, RESULT, TEXT, TOOL_CALL
from treadle.agent.dialects.tag_table import Tag
from treadle.core.answers.extraction import ANSWER
from treadle.environments.planning.tools.pictures import noted_picture
from treadle.viewer.turns import SPEAKERS, has_markers
from treadle.web.record.run_entries import shown_sources

KNOWN_KINDS = ("think", RESULT, "answer", TEXT, FRAME, *SPEAKERS)
"""Kinds that the style sheet has a class for."""
NUM_CALL_STYLES = 4
"""Styles of calls: the name of the tool picks one, so that a tool looks the same everywhere."""
_OTHER = "other"
_SHOWN_CHARS = 16_000
_PAGE_CHARS = 600_000
_PAGE_PIECES = 5_000
_BRIEF_CHARS = 400
_PREVIEW_CHARS = 160
_MAX_NAME_CHARS = 64
_MARKERS: Mapping[str, tuple[str, ...]] = {REASONING: ("think",), RESULT: (RESULT, "observation", "information")}
"""Kind -> words that its markers may have, if these differ from the kind."""
_OF_A_BATCH = re.compile(r"(t\d+\.call_.+_\d+)_\d+")
"""Pattern of the id of one query, in a call tag that holds several queries; group 1 is the id of the tag."""

SegmentRow = Mapping[str, Any]
"""Dict with kind, text, start and end. The last two index token ids, and are equal if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSegment:
    """A segment prepared for display."""

    place: int
    """Index among the segments, from 0."""
    kind: str
    text: str
    """Shown text from the beginning, without markers."""
    tail: str
    """End of the text if the middle is left out."""
    num_chars: int
    """Length of the full text."""
    style: str
    """CSS class; see `style_of`."""
    tool: str
    """Name of the tool of a native call, which its kind does not contain; empty for other pieces, or if unknown."""
    is_unclosed: bool
    """Whether the closing marker is missing."""
    preview: str
    """First line of the piece's text, cut if it is long."""
    outcome: str
    """Status of a tool call; empty for other pieces, or if unknown."""
    note: str
    num_tokens: int
    """Number of token ids; 0 without ids."""
    num_targets: int | None
    """Number of tokens that training learns to write; None if unknown."""
    sources: Sequence[str] = ()
    """URLs of the pages that a call used on the web."""
    picture: str = ""
    """Digest of the picture that a call looked at, in the run's store; empty for other pieces."""

    @property
    def is_plain(self) -> bool:
        """True if the kind names only the speaker."""
        return not has_markers(self.kind)

    @property
    def is_folded(self) -> bool:
        """True if the piece is collapsed at first: tool results and separate reasoning, because they are long."""
        return self.kind in (RESULT, REASONING, PRIVATE)

    @property
    def mask(self) -> str:
        """Share of the piece that is trained on: "all", "some" or "none"; empty if unknown."""
        if self.num_targets is None or not self.num_tokens:
            return ""
        return "all" if self.num_targets == self.num_tokens else "some" if self.num_targets else "none"


def pieces_of(
    segments: Sequence[SegmentRow],
    calls: Sequence[Mapping[str, Any]] = (),
    targets: np.ndarray | None = None,
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> list[ShownSegment]:
    """Return the pieces of a trajectory, at most 5,000: larger pages are slow to render and to read.

    Args:
        segments: All segments.
        calls: Ledger of tool calls. Used only if it has an entry for each call in the text; otherwise the assignment is
            unknown.
        targets: Mask over the token ids that training learns to write.
        addresses: Key of a web entry -> URL of its page, as far as known.
    """
    found, kinds = calls_by_place(segments, calls), call_kinds(segments, calls)
    left, pieces = _PAGE_CHARS, []
    for place, segment in enumerate(segments[:_PAGE_PIECES]):
        inner, is_unclosed = without_markers(segment)
        # Once the page is full, further pieces are shown briefly.
        room = _SHOWN_CHARS if left > 0 else _BRIEF_CHARS
        text, tail = (inner, "") if len(inner) <= room else (inner[: room * 3 // 4], inner[-room // 4 :])
        left -= len(text) + len(tail)
        call = found.get(place, {})
        tool = call.get("tool", "")[:_MAX_NAME_CHARS] if segment["kind"] == TOOL_CALL else ""
        start, end = segment["start"], segment["end"]
        pieces.append(
            ShownSegment(
                place=place,
                kind=segment["kind"],
                style=style_of(segment["kind"], kinds, tool),
                tool=tool,
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
                picture=noted_picture(call.get("note", "")),
            )
        )
    return pieces


def without_markers(segment: SegmentRow) -> tuple[str, bool]:
    """Return the text between a segment's markers, and whether the closing marker is missing."""
    if segment["kind"] == PRIVATE or not has_markers(segment["kind"]):
        return segment["text"].strip("\n"), False
    kind: str = segment["kind"]
    text = segment["text"].strip()
    tags = [Tag(word) for word in _MARKERS.get(kind, (kind,))]
    tag = next((one for one in tags if text.startswith(one.opening)), tags[0])
    inner = text.removeprefix(tag.opening)
    # With native calls, calls, reasoning and answers may have no markers.
    is_closed = inner.endswith(tag.closing) or (kind in (TOOL_CALL, REASONING, ANSWER) and inner == text)
    return inner.removesuffix(tag.closing).strip("\n"), not is_closed


def calls_by_place(segments: Sequence[SegmentRow], calls: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Map the index of a segment to the ledger entry of the call in it; the ledger defines what counts as a call.

    Queries of one tag count as one call. Empty if the ledger does not have exactly one entry for each call in the text.
    """
    calls = _tags(calls)
    tools = {call["tool"] for call in calls}
    places = [
        place
        for place, segment in enumerate(segments)
        if segment["kind"] == TOOL_CALL or (segment["kind"] in tools and _is_closed(segment))
    ]
    if len(places) != len(calls):
        return {}
    found = dict(zip(places, calls, strict=True))
    return found if all(segments[place]["kind"] in (TOOL_CALL, found[place]["tool"]) for place in places) else {}


def _tags(calls: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one entry per tag: if it has several queries, the first whose status is not `ok`, else the first one."""
    found: dict[object, Mapping[str, Any]] = {}
    for place, call in enumerate(calls):
        match = _OF_A_BATCH.fullmatch(call.get("id", ""))
        key = match[1] if match else place
        if key not in found or (found[key]["status"] == "ok" and call["status"] != "ok"):
            found[key] = call
    return list(found.values())


def call_kinds(segments: Sequence[SegmentRow], calls: Sequence[Mapping[str, Any]] = ()) -> frozenset[str]:
    """Return the kinds of segments that are calls: tools of the ledger, and kinds that a result follows directly."""
    shown = [segment["kind"] for segment in segments if segment["kind"] != TEXT or segment["text"].strip()]
    pairs = zip(shown, shown[1:], strict=False)
    before_results = (kind for kind, after in pairs if after == RESULT and kind not in KNOWN_KINDS)
    return frozenset({*before_results, *(call["tool"] for call in calls)})


def style_of(kind: str, calls: Collection[str], tool: str = "") -> str:
    """Return the CSS class of a segment: its kind if there is a style for it, `call-0`, `call-1`, …, or `other`.

    Args:
        kind: The kind, which may be a tag that the model or the user chose.
        calls: Kinds that are calls.
        tool: Name of the tool of a native call.
    """
    if kind in (REASONING, PRIVATE):
        return "think"
    if kind in KNOWN_KINDS:
        return kind
    if kind != TOOL_CALL and kind not in calls:
        return _OTHER
    return f"call-{zlib.crc32((tool or kind).encode(errors='surrogatepass')) % NUM_CALL_STYLES}"


def _is_closed(segment: SegmentRow) -> bool:
    closing = Tag(segment["kind"]).closing
    return bool(segment["text"].rstrip().endswith(closing))


def _preview(text: str) -> str:
    line = " ".join(text[: 4 * _PREVIEW_CHARS].split())
    return line if len(line) <= _PREVIEW_CHARS else line[: _PREVIEW_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Span:
    """Extent of a piece in the timeline of the trajectory, in thousandths of its width."""

    style: str
    start: float
    width: float


def timeline_of(pieces: Iterable[ShownSegment]) -> list[Span]:
    """Lay out pieces in a row with widths proportional to their length, and a minimum width for short ones."""
    shown = list(pieces)
    sizes = np.array([max(piece.num_tokens or piece.num_chars / 4, 1) for piece in shown], float)
    widths = np.maximum(sizes / max(sizes.sum(), 1), 0.006)
    widths *= 1000 / max(widths.sum(), 1e-9)
    starts = np.cumsum(widths) - widths
    return [
        Span(piece.style, round(start, 1), round(width, 1))
        for piece, start, width in zip(shown, starts.tolist(), widths.tolist(), strict=True)
    ]
