"""Hold the growing assistant turn of a rollout: token ids, their origins, and the decoded text and segments.

Sampled ids are kept as they are. The tail is cut only if generation ran past a closing marker, or if a cut falls inside
a token. What is left of that token is encoded again (origin 2: no log-prob loss). A closing marker that the server left
out is encoded in the same way. Results are encoded separately. Without a tokenizer, or with a server that gives no ids,
the same class holds text only (`codec=None`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from typing import Protocol as TypingProtocol

from treadle.agent.dialect import RESULT, Dialect, Segment, cut_after_first_close, render, tokenise
from treadle.agent.environment import CallRecord

ORIGIN_SYSTEM, ORIGIN_SAMPLED, ORIGIN_REENCODED = 0, 1, 2
"""Origin of an id: system text (a result), the model, or model text that was encoded here (cut inside a token, or
inserted)."""


class Codec(TypingProtocol):
    """Interface of a tokenizer; `treadle.core.chat.ChatTokenizer` implements it."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        ...

    def count_within(self, ids: Sequence[int], text: str) -> int:
        """Return the largest number of leading ids whose decoded text is a prefix of `text`."""
        ...

    def counts_before(self, ids: Sequence[int], text: str, positions: Sequence[int]) -> list[int]:
        """Return the number of ids before each of some ascending positions in their text.

        A token across a position counts in full.
        """
        ...


@dataclass(frozen=True, slots=True)
class Prefix:
    """Beginning of a trajectory to continue from: the state of an uninterrupted rollout at this point.

    `calls` are those whose outcome is part of it. `pending` means that it ends with a call or an answer that is still
    to be executed; a call at the end that is not pending was refused silently. `turn` is the number of the turn that
    acts or generates next.
    """

    segments: tuple[Segment, ...]
    ids: tuple[int, ...]
    origins: tuple[int, ...]
    calls: tuple[CallRecord, ...]
    turn: int
    pending: bool

    @property
    def text(self) -> str:
        """The assistant turn so far."""
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
    """Return the first `num_segments` segments of a trajectory as a prefix, with the ids kept as they are.

    If the boundary lies inside a token, the kept part of that token is encoded again. The calls are those of the kept
    segments. Raises ValueError if the trajectory has fewer segments.
    """
    if not 0 <= num_segments <= len(segments):
        raise ValueError(f"a trajectory of {len(segments)} segments cannot be cut after {num_segments}")
    kept = list(segments[:num_segments])
    num_calls = sum(_is_call(segment, dialect) for segment in kept)
    pending = bool(kept) and (_is_call(kept[-1], dialect) or _is_answer(kept[-1], dialect))
    num_done = num_calls - 1 if pending and _is_call(kept[-1], dialect) else num_calls
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
    start = next((segment.end for segment in reversed(kept) if segment.kind == RESULT), 0)
    text = render(kept[_index_after_last_result(kept) :])
    part, part_origins, _ = keep_prefix(codec, list(ids[start:end]), list(origins[start:end]), text)
    return [*ids[:start], *part], [*origins[:start], *part_origins]


def _index_after_last_result(segments: Sequence[Segment]) -> int:
    return max((index + 1 for index, segment in enumerate(segments) if segment.kind == RESULT), default=0)


def _is_call(segment: Segment, dialect: Dialect) -> bool:
    return segment.kind in dialect.tools and segment.text.endswith(dialect.by_name[segment.kind].closing)


def _is_answer(segment: Segment, dialect: Dialect) -> bool:
    tag = dialect.by_name[dialect.answer]
    return segment.kind == tag.name and segment.text.endswith(tag.closing)


def keep_prefix(codec: Codec, ids: list[int], origins: list[int], text: str) -> tuple[list[int], list[int], int]:
    """Shorten ids to those of `text`, which is a prefix of their decoded text.

    Returns ids, origins and the number of ids dropped. Ids that lie wholly within the text stay as they are; the rest
    of the text, which ends inside a token, is encoded again.
    """
    count = codec.count_within(ids, text)
    tail = text[len(codec.decode(ids[:count])) :]
    again = codec.encode(tail) if tail else []
    # A token of which a part is kept does not count as dropped.
    dropped = len(ids) - count - (1 if tail else 0)
    return ids[:count] + again, origins[:count] + [ORIGIN_REENCODED] * len(again), max(dropped, 0)


@dataclass(slots=True)
class _Span:
    """Span with one author: model text up to a closing marker, or one result block. `start` and `end` are in ids."""

    author: Literal["model", "system"]
    text: str
    start: int
    end: int


class Transcript:
    """Assistant turn of one rollout while it grows.

    Attributes:
        ids: Token ids of the assistant turn; empty in text mode. Packed, since thousands of rollouts are held at once.
        origins: Origin of each id.
        wasted_tokens: Sampled tokens that were cut off (an estimate in text mode).
        markers_restored: Number of closing markers that a server left out and that were put back.
    """

    def __init__(self, dialect: Dialect, codec: Codec | None, prefix: Prefix | None = None) -> None:
        self._dialect = dialect
        self._codec = codec
        self._closed: list[Segment] = []
        self._spans: list[_Span] = []
        self.ids = array("i", prefix.ids if prefix else ())
        self.origins = bytearray(prefix.origins if prefix else ())
        self.wasted_tokens = 0
        self.markers_restored = 0
        if prefix:
            self._adopt(prefix.segments, prefix.pending)

    @property
    def text(self) -> str:
        """The assistant turn so far."""
        return render(self._closed) + "".join(span.text for span in self._spans)

    def log(self) -> list[str]:
        """Return the turn so far in pieces, in order: model text up to and including each call, and result blocks."""
        pieces = [""]
        for segment in self._closed:
            if segment.kind == RESULT:
                pieces += [segment.text, ""]
            else:
                pieces[-1] += segment.text
                if _is_call(segment, self._dialect):
                    pieces.append("")
        return [piece for piece in [*pieces, *(span.text for span in self._spans)] if piece]

    @property
    def open_text(self) -> str:
        """Model text since the last result block or the last closing marker that was acted on."""
        last = self._spans[-1] if self._spans else None
        return last.text if last is not None and last.author == "model" else ""

    @property
    def is_at_stop(self) -> bool:
        """Whether the model text since then contains a marker at which generation stops."""
        return self._dialect.closing_stops.search(self.open_text) is not None

    def append_completion(self, text: str, ids: Sequence[int] | None, completion_tokens: int, marker: str = "") -> bool:
        """Append one completion, cut after its first closing marker; return whether it added anything.

        `marker` is the closing marker that ended it and that its text lacks; it is put back unless the ids contain it.
        """
        if self._codec is None:
            return self._append_text(text, completion_tokens, marker)
        new = list(ids or ())
        while new and new[-1] in self._codec.eos_ids:
            new.pop()
        if not new and not marker:
            return False
        span = self._open_span()
        before = len(span.text)
        candidate = self.ids[span.start :].tolist() + new
        decoded = self._codec.decode(candidate)
        kept = cut_after_first_close(decoded, self._dialect)
        if len(kept) == len(decoded):
            self.ids.fromlist(new)
            self.origins += bytes([ORIGIN_SAMPLED]) * len(new)
        else:
            self._replace(span.start, candidate, len(new), kept)
        span.text, span.end = kept, len(self.ids)
        if marker and not self._dialect.closing_stops.search(kept):
            # The ids may contain part of the marker although the text does not.
            begun = decoded[before + len(text) :] if decoded.startswith(text, before) else ""
            self._restore_marker(marker.removeprefix(begun))
        return True

    def _restore_marker(self, marker: str) -> None:
        self.markers_restored += 1
        self.insert(marker)

    def _replace(self, start: int, ids: list[int], num_sampled: int, kept: str) -> None:
        """Replace all ids from `start` on by the part of `ids` that decodes to `kept`.

        The last `num_sampled` of `ids` are sampled ones.
        """
        assert self._codec is not None
        origins = [*self.origins[start:], *[ORIGIN_SAMPLED] * num_sampled]
        ids, origins, dropped = keep_prefix(self._codec, ids, origins, kept)
        self.wasted_tokens += dropped
        self.ids[start:] = array("i", ids)
        self.origins[start:] = bytes(origins)

    def _append_text(self, text: str, completion_tokens: int, marker: str) -> bool:
        if not text and not marker:
            return False
        span = self._open_span()
        whole = span.text + text
        span.text = cut_after_first_close(whole, self._dialect)
        if cut := len(whole) - len(span.text):
            self.wasted_tokens += round(completion_tokens * cut / len(text))
        elif marker:
            self._restore_marker(marker)
        return True

    def insert(self, text: str) -> None:
        """Append model text that was not sampled here, as a continuation of the current span."""
        span = self._open_span()
        if self._codec is not None:
            new = self._codec.encode(text)
            text = self._codec.decode(new)
            self.ids.fromlist(new)
            self.origins += bytes([ORIGIN_REENCODED]) * len(new)
        span.text, span.end = span.text + text, len(self.ids)

    def prefix(self, calls: Sequence[CallRecord], turn: int) -> Prefix:
        """Return the whole turn as a prefix, to be continued after `calls` in turn `turn`."""
        segments = tuple(self.segments())
        last = segments[-1] if segments else None
        pending = last is not None and (_is_call(last, self._dialect) or _is_answer(last, self._dialect))
        return Prefix(segments, tuple(self.ids), tuple(self.origins), tuple(calls), turn, pending)

    def append_block(self, block: str) -> None:
        """Append text written by the system, encoded separately."""
        start = len(self.ids)
        if self._codec is not None:
            new = self._codec.encode(block)
            # The ids decide: a tokenizer may normalise characters.
            block = self._codec.decode(new)
            self.ids.fromlist(new)
            self.origins += bytes([ORIGIN_SYSTEM]) * len(new)
        self._spans.append(_Span("system", block, start, len(self.ids)))

    def close_span(self) -> None:
        """Start a new span, because the model text so far was acted on."""
        self._spans.append(_Span("model", "", len(self.ids), len(self.ids)))

    def segments(self) -> list[Segment]:
        """Return the typed segments of the whole turn; `start` and `end` are in ids (0 in text mode)."""
        found = list(self._closed)
        for span in self._spans:
            if span.author == "system":
                found.append(Segment(RESULT, span.text, span.start, span.end))
            elif span.text:
                found += self._model_segments(span)
        return found

    def _model_segments(self, span: _Span) -> list[Segment]:
        pieces = tokenise(span.text, self._dialect, model_text=True)
        if self._codec is None:
            return [Segment(piece.kind, piece.text, 0, 0) for piece in pieces]
        ids = self.ids[span.start : span.end]
        ends = [*self._codec.counts_before(ids, span.text, [piece.end for piece in pieces[:-1]]), len(ids)]
        starts = [0, *ends[:-1]]
        return [
            Segment(piece.kind, piece.text, span.start + start, span.start + end)
            for piece, start, end in zip(pieces, starts, ends, strict=True)
        ]

    def _open_span(self) -> _Span:
        if not self._spans or self._spans[-1].author != "model":
            self.close_span()
        return self._spans[-1]

    def _adopt(self, segments: Sequence[Segment], pending: bool) -> None:
        """Load the segments of a prefix: finished ones as they are, trailing model text as the open span."""
        begin = len(segments)
        while begin and segments[begin - 1].kind != RESULT and not self._ends_span(segments, begin, pending):
            begin -= 1
        self._closed = list(segments[:begin])
        if begin < len(segments):
            start = segments[begin].start
            self._spans.append(_Span("model", render(segments[begin:]), start, len(self.ids)))

    def _ends_span(self, segments: Sequence[Segment], end: int, pending: bool) -> bool:
        """Return whether a span ends before segment `end`; the last segment stays open if it is pending."""
        if end == len(segments) and pending:
            return False
        segment = segments[end - 1]
        return _is_call(segment, self._dialect) or _is_answer(segment, self._dialect)
