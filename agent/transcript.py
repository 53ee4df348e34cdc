"""Hold the growing context of a rollout after its prompt: token ids, their origins, and the decoded text and segments.

Sampled ids are kept unchanged. The tail is cut only if generation ran past a stop marker, or if a cut falls inside a
token. What is left of that token is encoded again (origin 2: no log-prob loss). A stop marker that the server left out
is encoded in the same way. What the environment writes is encoded separately: a block inside the assistant's turn, or
messages between two turns, with the control tokens that the chat template puts there. The transcript is append-only;
requests show all of it, or after a trim a part (`treadle.agent.trimming`). Without a tokenizer, or with a server that
gives no ids, the same class holds text only (`codec=None`).
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from treadle.agent.contract import CallRecord, Message
from treadle.agent.dialects.base import FRAME, REASONING, RESULT, TEXT, Dialect, Segment, render
from treadle.agent.prefix import Prefix
from treadle.agent.token_ids import ORIGIN_REENCODED, ORIGIN_SAMPLED, ORIGIN_SYSTEM, Codec, keep_prefix
from treadle.agent.trimming import Context, runs
from treadle.core.answers.extraction import SYSTEM_KINDS

ReplyText = Callable[[Sequence[Mapping[str, str]]], str]
"""Function that returns the text between two assistant turns."""


@dataclass(slots=True)
class _Span:
    """Span with one author: model text up to a stop marker (`kind` is empty), or a piece that the system wrote.

    `start` and `end` are positions in the transcript's ids.
    """

    kind: str
    text: str
    start: int
    end: int


class Transcript:
    """Context of one rollout after its prompt, while it grows.

    Attributes:
        ids: Token ids after the prompt; empty in text mode. Packed, since thousands of rollouts are held at once.
        origins: Origin of each id.
        turn_starts: Number of ids before each turn of the model.
        wasted_tokens: Sampled tokens that were cut off (an estimate in text mode).
        notes: Number of oddities in answers, by the keys of `treadle.core.llm.oddities.ODDITIES`.
        contexts: What requests show of the transcript: one context, and another after each trim; the last is in use.
    """

    def __init__(
        self, dialect: Dialect, codec: Codec | None, prefix: Prefix | None = None, reply_text: ReplyText | None = None
    ) -> None:
        """Start a transcript, with the segments of `prefix` if given.

        `reply_text` renders messages in text mode; without it, only their contents are kept (chat).
        """
        self._dialect = dialect
        self._codec = codec
        self._reply_text = reply_text
        self._closed: list[Segment] = []
        self._spans: list[_Span] = []
        self._turn_end: tuple[int, ...] = ()
        self.ids = array("i", prefix.ids if prefix else ())
        self.origins = bytearray(prefix.origins if prefix else ())
        self.turn_starts = array("i", prefix.turn_starts if prefix else ())
        self.wasted_tokens = 0
        self.notes: dict[str, int] = {}
        self.contexts = [Context()]
        if prefix:
            self._adopt(prefix.segments, prefix.pending)

    @property
    def text(self) -> str:
        """The whole text so far."""
        return render(self._closed) + "".join(span.text for span in self._spans)

    @property
    def shown_ids(self) -> array[int]:
        """Ids after the prompt that the next request shows."""
        context = self.contexts[-1]
        return context.ids + self.ids[context.num_ids :] if context.num_ids else self.ids

    @property
    def shown_text(self) -> str:
        """Text after the prompt that the next request shows."""
        return render(self.shown_segments()) if self.contexts[-1].num_segments else self.text

    def shown_segments(self) -> list[Segment]:
        """Return the segments that the next request shows."""
        segments, context = self.segments(), self.contexts[-1]
        kept = (
            replace(segments[number], text=context.texts[number]) if number in context.texts else segments[number]
            for number in context.kept
        )
        return [*kept, *segments[context.num_segments :]]

    def shown_numbers(self) -> list[int]:
        """Return the numbers of `shown_segments` among all segments."""
        context = self.contexts[-1]
        return [*context.kept, *range(context.num_segments, len(self.segments()))]

    def trim(self, kept: Sequence[int], texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """Show only the segments with these numbers from now on, and what follows; call it between turns only.

        Ids stay unchanged, unless a token also holds text of a segment that is left out. Segments in `texts` are shown
        with that text, which is encoded here. If it begins with the segment's own text, that part keeps its ids.
        """
        segments = self.segments()
        ids = array("i")
        for has_text, numbers in itertools.groupby(kept, lambda number: number in texts):
            if has_text:
                for number in numbers:
                    ids += self._ids_with_text(segments[number], texts[number])
                continue
            for start, end in runs(list(numbers)):
                ids += self._ids_of(segments[start:end])
        left_out = set(range(len(segments))).difference(kept)
        num_turns = len(self.turn_starts)
        if len(self.contexts) > 1 and self.contexts[-1].num_segments == len(segments):
            num_turns = self.contexts.pop().num_turns  # nothing was written in that context
        self.contexts.append(
            Context(
                tuple(kept),
                len(segments),
                len(self.ids),
                num_turns,
                ids,
                sum(segments[number].kind in SYSTEM_KINDS - {FRAME} for number in left_out),
                dict(texts),
            )
        )

    def _ids_with_text(self, segment: Segment, text: str) -> array[int]:
        """Return the ids of a segment that is shown with another text."""
        if self._codec is None:
            return array("i")
        if not text.startswith(segment.text):
            return array("i", self._codec.encode(text))
        return self._ids_of([segment]) + array("i", self._codec.encode(text[len(segment.text) :]))

    def _ids_of(self, segments: Sequence[Segment]) -> array[int]:
        """Return the ids of neighbouring segments."""
        if self._codec is None:
            return array("i")
        ids, text = self.ids[segments[0].start : segments[-1].end], render(segments)
        return ids if self._codec.decode(ids) == text else array("i", self._codec.encode(text))

    def log(self) -> list[str]:
        """Return the context in pieces, in order: model text up to and including each call, results and messages."""
        pieces = [""]
        for segment in self._closed:
            if segment.kind in SYSTEM_KINDS:
                pieces += [segment.text, ""]
            else:
                pieces[-1] += segment.text
                if self._dialect.is_call(segment):
                    pieces.append("")
        pieces += [span.text for span in self._spans if span.kind != FRAME]
        return [piece for piece in pieces if piece]

    @property
    def open_text(self) -> str:
        """Model text since the last system text or the last stop marker that was acted on."""
        last = self._spans[-1] if self._spans else None
        return last.text if last is not None and not last.kind else ""

    @property
    def is_at_stop(self) -> bool:
        """Whether `open_text` contains a marker at which generation stops."""
        return self._dialect.is_stopped(self.open_text)

    def append_completion(self, text: str, ids: Sequence[int] | None, completion_tokens: int, marker: str = "") -> bool:
        """Append one completion, cut after its first stop marker; return whether it added anything.

        `marker` is the stop marker that ended the completion but is missing in its text; it is added unless the ids
        contain it. An end-of-turn id at the end is held until it is clear that the turn ends there.
        """
        self.turn_starts.append(len(self.ids))
        if self._codec is None:
            return self._append_text(text, completion_tokens, marker)
        new = list(ids or ())
        self._turn_end = ()
        while new and new[-1] in self._codec.eos_ids:
            self._turn_end = (new.pop(),)
        if not new and not marker:
            return False
        span = self._open_span()
        before = len(span.text)
        candidate = self.ids[span.start :].tolist() + new
        decoded = self._codec.decode(candidate)
        kept = self._dialect.cut(decoded)
        if len(kept) == len(decoded):
            self.ids.fromlist(new)
            self.origins += bytes([ORIGIN_SAMPLED]) * len(new)
        else:
            self._replace(span.start, candidate, len(new), kept)
        span.text, span.end = kept, len(self.ids)
        is_stopped = (bool(marker) or bool(self._turn_end)) and self._dialect.is_stopped(kept)
        if marker and not is_stopped:
            # The ids may contain part of the marker although the text does not.
            begun = decoded[before + len(text) :] if decoded.startswith(text, before) else ""
            self._restore_marker(marker.removeprefix(begun))
        if marker or is_stopped:
            self._turn_end = ()
        return True

    def note(self, oddity: str) -> None:
        """Count an oddity in an answer; see `notes`."""
        self.notes[oddity] = self.notes.get(oddity, 0) + 1

    def append_reasoning(self, text: str) -> None:
        """Append reasoning that a service returned outside the text; it is a span of its own (text mode only)."""
        self._spans.append(_Span(REASONING, text, len(self.ids), len(self.ids)))

    def _restore_marker(self, marker: str) -> None:
        self.note("marker_restored")
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
        span.text = self._dialect.cut(whole)
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

    def end_turn(self, end: int | None) -> None:
        """Set the end-of-turn id to append if the model's turn ends here; None for no id."""
        self._turn_end = () if end is None else (end,)

    def prefix(self, calls: Sequence[CallRecord], turn: int) -> Prefix:
        """Return the whole context as a prefix; for `calls` and `turn` see `Prefix`."""
        segments = tuple(self.segments())
        pending = bool(segments) and self._dialect.is_acted_on(segments[-1])
        return Prefix(
            segments, tuple(self.ids), tuple(self.origins), tuple(calls), turn, pending, tuple(self.turn_starts)
        )

    def append(self, messages: Sequence[Message]) -> None:
        """Append what the environment wrote: blocks inside the assistant's turn, other messages between two turns.

        Consecutive messages go through the chat template together. Their contents never become control tokens.
        """
        replies: list[Message] = []
        for message in messages:
            if message.role != "block":
                replies.append(message)
                continue
            if replies:
                self._append_replies(replies)
                replies = []
            self.append_block(message.text)
        if replies:
            self._append_replies(replies)

    def append_block(self, block: str) -> None:
        """Append a result block, encoded separately from the text before it."""
        self._turn_end = ()
        start = len(self.ids)
        if self._codec is not None:
            # A tokenizer may normalise characters, so the text is decoded from the ids.
            block = self._append_system_ids(self._codec.encode(block))
        self._spans.append(_Span(RESULT, block, start, len(self.ids)))

    def _append_system_ids(self, ids: list[int]) -> str:
        assert self._codec is not None
        self.ids.fromlist(ids)
        self.origins += bytes([ORIGIN_SYSTEM]) * len(ids)
        return self._codec.decode(ids)

    def _append_replies(self, replies: Sequence[Message]) -> None:
        contents = [(reply.role, reply.text) for reply in replies]
        messages = [{"role": role, "content": text} for role, text in contents]
        start = len(self.ids)
        if self._codec is None:
            write = self._reply_text
            pieces = contents if write is None else split_reply(write(messages), contents, write)
            self._spans += [_Span(kind, piece, start, start) for kind, piece in pieces]
            return
        codec = self._codec
        sampled, self._turn_end = self._turn_end, ()

        def ids_of(messages: Sequence[Mapping[str, str]]) -> list[int]:
            ids, num_end = codec.reply_ids(messages)
            # The id that the model sampled to end its turn replaces the one that the template writes.
            return [*sampled, *ids[num_end:]] if sampled else ids

        ids = ids_of(messages)
        text = self._append_system_ids(ids)
        self.origins[start : start + len(sampled)] = bytes([ORIGIN_SAMPLED]) * len(sampled)
        pieces = split_reply(text, contents, lambda others: codec.decode(ids_of(others)))
        positions, end = [], 0
        for _, piece in pieces:
            end += len(piece)
            positions.append(end)
        ends = [*self._codec.counts_before(ids, text, positions[:-1]), len(ids)]
        for (kind, piece), begin, end in zip(pieces, [0, *ends[:-1]], ends, strict=True):
            self._spans.append(_Span(kind, piece, start + begin, start + end))

    def seal(self) -> None:
        """Append the end-of-turn id that the model sampled last, if its turn is the end of the rollout."""
        if self._turn_end and self._codec is not None:
            start = len(self.ids)
            text = self._append_system_ids(list(self._turn_end))
            self.origins[start:] = bytes([ORIGIN_SAMPLED]) * len(self._turn_end)
            self._spans.append(_Span(FRAME, text, start, len(self.ids)))
        self._turn_end = ()

    def close_span(self) -> None:
        """Start a new span, because the model text so far was acted on."""
        self._spans.append(_Span("", "", len(self.ids), len(self.ids)))

    def segments(self) -> list[Segment]:
        """Return the typed segments of the whole transcript; `start` and `end` index its ids (0 in text mode)."""
        found = list(self._closed)
        for span in self._spans:
            if span.kind:
                found.append(Segment(span.kind, span.text, span.start, span.end))
            elif span.text:
                found += self._model_segments(span)
            elif span.end > span.start:
                # Ids that are no text, such as special tokens that the server leaves out.
                found.append(Segment(TEXT, "", span.start, span.end))
        return found

    def _model_segments(self, span: _Span) -> list[Segment]:
        pieces = self._dialect.segments(span.text)
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
        if not self._spans or self._spans[-1].kind:
            self.close_span()
        return self._spans[-1]

    def _adopt(self, segments: Sequence[Segment], pending: bool) -> None:
        """Load the segments of a prefix: finished ones unchanged, trailing model text as the open span."""
        begin = len(segments)
        while begin and segments[begin - 1].kind not in SYSTEM_KINDS and not self._ends_span(segments, begin, pending):
            begin -= 1
        self._closed = list(segments[:begin])
        if begin < len(segments):
            start = segments[begin].start
            self._spans.append(_Span("", render(segments[begin:]), start, len(self.ids)))

    def _ends_span(self, segments: Sequence[Segment], end: int, pending: bool) -> bool:
        """Return whether a span ends before segment `end`; the last segment stays open if it is pending."""
        return not (end == len(segments) and pending) and self._dialect.is_acted_on(segments[end - 1])


def split_reply(text: str, contents: Sequence[tuple[str, str]], write: ReplyText) -> list[tuple[str, str]]:
    """Split the text between two turns into pieces (kind, text): message contents, each with its role, and frames.

    `contents` are the messages as (role, content). `write` is the function that rendered the text; if a content is
    empty or occurs several times, it renders placeholders, which show where the contents are. Templates may strip a
    content. If the template changed one in another way, the rest of the text is one piece with that message's role.
    """
    is_unique = all(content and text.count(content) == 1 for _, content in contents)
    pieces = None if is_unique else _split_by_frames(text, contents, write)
    return [piece for piece in pieces or _split_by_contents(text, contents) if piece[1]]


def _split_by_contents(text: str, contents: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    pieces: list[tuple[str, str]] = []
    position = 0
    for role, content in contents:
        at = text.find(content, position)
        if at < 0:
            content = content.strip()
            at = text.find(content, position)
        if at < 0:
            pieces.append((role, text[position:]))
            position = len(text)
            break
        pieces += [(FRAME, text[position:at]), (role, content)]
        position = at + len(content)
    return [*pieces, (FRAME, text[position:])]


def _split_by_frames(text: str, contents: Sequence[tuple[str, str]], write: ReplyText) -> list[tuple[str, str]] | None:
    """Split at the frames that `write` renders around placeholders; None if the pieces do not add up to the text."""
    # Private-use characters, which templates neither strip nor change.
    placeholders = [{"role": role, "content": f"\ue000{place}\ue000"} for place, (role, _) in enumerate(contents)]
    frames = re.split("\ue000[0-9]+\ue000", write(placeholders))
    if len(frames) != len(contents) + 1:
        return None
    pieces: list[tuple[str, str]] = []
    position = 0
    for frame, (role, content) in zip(frames, contents, strict=False):
        start = position + len(frame)
        written = content if text.startswith(content, start) else content.strip()
        pieces += [(FRAME, frame), (role, written)]
        position = start + len(written)
    pieces.append((FRAME, frames[-1]))
    return pieces if "".join(piece for _, piece in pieces) == text else None
