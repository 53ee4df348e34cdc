"""Show operators a trajectory with native calls as one with tags, and convert their edits back to native turns.

Operators, their prompts and parsers know tags alone: `<think>`, one tag per tool, `<result>`, `<answer>`. Each piece of
the view represents segments of the trajectory. Segments that an operator keeps stay unchanged, byte for byte, and so do
the ids of their calls in the trajectory's ledger; only new pieces are written. Only for trajectories without token ids,
whose service renders messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import orjson

from treadle.agent.dialects.base import ANSWER, REASONING, RESULT, TEXT, TOOL_CALL, Segment, render
from treadle.agent.dialects.forms.base import CallText
from treadle.agent.dialects.forms.hermes import HermesForm, escape_calls, write_call
from treadle.agent.dialects.functions import bare_reasoning
from treadle.agent.dialects.tag_table import Tag
from treadle.agent.dialects.tags import TagDialect, neutralise, result_block
from treadle.agent.prefix import Prefix
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.operators.replies import THINK

_RESERVED = SYSTEM_KINDS | {THINK, ANSWER, TEXT, REASONING}


@dataclass(frozen=True, slots=True)
class _Piece:
    """Segment of the view, and the indices of the native segments that it represents."""

    segment: Segment
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallView:
    """View of one trajectory.

    Attributes:
        dialect: Tags of the view. The text of a call is its argument if the tool takes one string, else JSON.
        trajectory: The trajectory as operators see it.
    """

    dialect: TagDialect
    trajectory: Trajectory
    _native: Trajectory
    _pieces: tuple[_Piece, ...]
    _tools: Mapping[str, str]
    """Tag -> name of its tool."""
    _has_reasoning: bool
    """Whether the model's reasoning is in segments of its own, not in its text; new thoughts are then too."""

    @classmethod
    def of(cls, native: Trajectory) -> CallView:
        """Return the view; raise EditRejected (`unmatched_results`) if not every call has exactly one result."""
        tags = _tags(native)
        parameters = {schema.name: _only_text(schema) for schema in native.tools}
        dialect = TagDialect(
            tags=(
                Tag(THINK),
                *[Tag(tag, is_tool=True, stop=True, parameter=parameters.get(tags[tag]) or "") for tag in tags],
                Tag(RESULT, author="system"),
                Tag(ANSWER, stop=True),
            )
        )
        has_reasoning = any(segment.kind == REASONING for segment in native.segments)
        pieces = tuple(_pieces(native, dialect, {name: tag for tag, name in tags.items()}, has_reasoning))
        if sum(piece.segment.kind == RESULT for piece in pieces) != len(native.calls):
            raise EditRejected("unmatched_results")
        segments = [piece.segment for piece in pieces]
        view = replace(native, text=render(segments), segments=segments)
        return cls(dialect, view, native, pieces, tags, has_reasoning)

    def native_prefix(self, prefix: Prefix) -> Prefix:
        """Convert a prefix of the view, which may end with new text, to a prefix of native turns."""
        num_kept = 0
        for place, (piece, segment) in enumerate(zip(self._pieces, prefix.segments, strict=False), 1):
            if not _is_same(piece.segment, segment):
                break
            # A turn is kept only together with its result; a turn without one is written again from its text.
            num_kept = place if segment.kind == RESULT else num_kept
        kept = sorted(index for piece in self._pieces[:num_kept] for index in piece.sources)
        new = self._new_turn(prefix.segments[num_kept:])
        return replace(prefix, segments=(*[self._native.segments[index] for index in kept], *new), turn_starts=())

    def native_trajectory(self, edited: Trajectory) -> Trajectory:
        """Convert an edited view, in which only thoughts may be different, to a native trajectory.

        Raises EditRejected (`actions_changed`) if anything else is different.
        """
        if len(edited.segments) != len(self._pieces):
            raise EditRejected("actions_changed", edited.text)
        segments: list[Segment | None] = list(self._native.segments)
        for piece, segment in zip(self._pieces, edited.segments, strict=True):
            if _is_same(piece.segment, segment):
                continue
            if piece.segment.kind != THINK or segment.kind != THINK:
                raise EditRejected("actions_changed", edited.text)
            first, *others = piece.sources
            kind = REASONING if self._has_reasoning else TEXT
            end = "" if self._has_reasoning else "\n"
            segments[first] = Segment(kind, self._thought(segment) + end, 0, 0)
            for index in others:
                segments[index] = None
        written = [segment for segment in segments if segment is not None]
        return replace(edited, text=render(written), segments=written, calls=self._native.calls)

    def _new_turn(self, pieces: Sequence[Segment]) -> Iterator[Segment]:
        """Yield the segments of a new turn: an open thought, or a turn that ends with a call or the answer."""
        if not pieces:
            return
        action = pieces[-1] if self.dialect.is_acted_on(pieces[-1]) else None
        thoughts = [piece for piece in pieces if piece is not action]
        thought = "\n".join(filter(None, (self._thought(one) for one in thoughts)))
        if action is None:
            yield Segment(*((REASONING, f"<think>\n{thought}") if self._has_reasoning else (TEXT, thought)), 0, 0)
            return
        if self._has_reasoning and thought:
            yield Segment(REASONING, f"<think>\n{thought}\n</think>\n\n", 0, 0)
            thought = ""
        tag = self.dialect.by_name[action.kind]
        body = action.text.removeprefix(tag.opening).removesuffix(tag.closing).strip()
        if not tag.is_tool:
            yield Segment(ANSWER, "\n\n".join(filter(None, [thought, escape_calls(body)])), 0, 0)
            return
        if thought:
            yield Segment(TEXT, f"{thought}\n", 0, 0)
        arguments = orjson.dumps({tag.parameter: body}).decode() if tag.parameter else body
        yield Segment(TOOL_CALL, write_call(self._tools[tag.name], arguments), 0, 0)

    def _thought(self, segment: Segment) -> str:
        think = self.dialect.by_name[THINK]
        return escape_calls(segment.text.removeprefix(think.opening).removesuffix(think.closing).strip())


def _is_same(first: Segment, second: Segment) -> bool:
    return (first.kind, first.text) == (second.kind, second.text)


def _tags(native: Trajectory) -> dict[str, str]:
    """Return tag -> name of its tool, for the tools that the model was given and others that it called."""
    names = [schema.name for schema in native.tools]
    names += [_read(segment).name for segment in native.segments if segment.kind == TOOL_CALL]
    return {f"{name}_tool" if name in _RESERVED else name: name for name in dict.fromkeys(names)}


def _only_text(schema: ToolSchema) -> str | None:
    """Return the name of a tool's only parameter if it is a string; None for other tools."""
    properties = schema.parameters.get("properties")
    if not isinstance(properties, Mapping) or len(properties) != 1:
        return None
    ((name, described),) = properties.items()
    return name if isinstance(described, Mapping) and described.get("type") == "string" else None


def _read(segment: Segment) -> CallText:
    found = HermesForm().find(segment.text)
    if len(found) != 1:
        raise EditRejected("unmatched_results", segment.text)
    return found[0]


def _pieces(native: Trajectory, dialect: TagDialect, tags: Mapping[str, str], has_reasoning: bool) -> Iterator[_Piece]:
    """Yield the pieces of the view; of several calls of a turn, each is followed by its own result."""
    numbered = list(enumerate(native.segments))
    groups = [list(group) for _, group in groupby(numbered, key=lambda item: item[1].kind in SYSTEM_KINDS)]
    if groups and groups[0][0][1].kind in SYSTEM_KINDS:
        raise EditRejected("unmatched_results")
    for place in range(0, len(groups), 2):
        results = groups[place + 1] if place + 1 < len(groups) else []
        is_answered = place + 1 >= len(groups) and native.status == "answered"
        yield from _turn(groups[place], results, dialect, tags, has_reasoning, is_answered=is_answered)


def _turn(
    turn: Sequence[tuple[int, Segment]],
    results: Sequence[tuple[int, Segment]],
    dialect: TagDialect,
    tags: Mapping[str, str],
    has_reasoning: bool,
    *,
    is_answered: bool,
) -> list[_Piece]:
    """Return the pieces of a turn and its results."""
    num_calls = sum(segment.kind == TOOL_CALL for _, segment in turn)
    if any(segment.kind != "tool" for _, segment in results) or (results and len(results) != num_calls):
        raise EditRejected("unmatched_results")
    answers = iter(results)
    found: list[_Piece] = []
    blank: list[int] = []
    for role, group in groupby(turn, key=lambda item: _role(item[1], has_reasoning, is_answered=is_answered)):
        items = list(group)
        if role == TOOL_CALL:
            for index, segment in items:
                found.append(_Piece(_call(segment, dialect, tags), (*blank, index)))
                blank = []
                if results:
                    place, result = next(answers)
                    found.append(_Piece(Segment(RESULT, result_block(result.text, dialect), 0, 0), (place,)))
            continue
        indices = [index for index, _ in items]
        said = "\n\n".join(filter(None, [bare_reasoning(segment.text) for _, segment in items]))
        if not said:
            blank += indices
            continue
        text = neutralise(said, dialect)
        if role != TEXT:
            text = f"{dialect.by_name[role].opening}{text}{dialect.by_name[role].closing}"
        found.append(_Piece(Segment(role, text, 0, 0), (*blank, *indices)))
        blank = []
    if blank and found:
        found[-1] = _Piece(found[-1].segment, (*found[-1].sources, *blank))
    return found


def _role(segment: Segment, has_reasoning: bool, *, is_answered: bool) -> str:
    """Return the kind of a segment in the view; text next to calls is a thought, unless reasoning is separate."""
    if segment.kind == TOOL_CALL:
        return TOOL_CALL
    if segment.kind == ANSWER and is_answered:
        return ANSWER
    return THINK if segment.kind == REASONING or not has_reasoning else TEXT


def _call(segment: Segment, dialect: TagDialect, tags: Mapping[str, str]) -> Segment:
    call = _read(segment)
    tag = dialect.by_name[tags[call.name]]
    body = call.arguments.get(tag.parameter) if len(call.arguments) == 1 else None
    if call.error:
        body = segment.text
    elif not isinstance(body, str):
        body = orjson.dumps(call.arguments).decode()
    return Segment(tag.name, f"{tag.opening}{neutralise(body, dialect)}{tag.closing}", 0, 0)
