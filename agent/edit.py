"""Edit trajectories: extend a prefix with given text, and assemble a trajectory from pieces.

Inserted text is encoded on its own, and its ids have origin 2 (not sampled here), so they get no log-prob loss in RL.
As a target of fine-tuning it counts like all model text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from treadle.agent.contract import CallRecord
from treadle.agent.dialects.base import REASONING, TEXT, Dialect, Segment
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.prefix import Prefix
from treadle.agent.token_ids import Codec
from treadle.agent.trajectory import Trajectory, Usage
from treadle.agent.transcript import Transcript
from treadle.core.answers.extraction import SYSTEM_KINDS

_THINK = "think"
Piece = tuple[Literal["model", "system"], str]
"""Author and text; a system piece is one whole result block."""


def extended(prefix: Prefix, text: str, codec: Codec | None, dialect: Dialect) -> Prefix:
    """Return a prefix with model text appended; it is pending if the text ends with a call or an answer.

    Raises ValueError if the prefix itself ends with a call without a result, or with an answer.
    """
    if prefix.pending:
        raise ValueError("a prefix that ends with an open call or an answer cannot be extended")
    transcript = Transcript(dialect, codec, prefix)
    transcript.insert(text)
    return transcript.prefix(prefix.calls, prefix.turn)


def empty_prefix() -> Prefix:
    """Return the prefix of a rollout before its first turn."""
    return Prefix((), (), (), (), 0, False)


def assembled(
    parent: Trajectory,
    pieces: Iterable[Piece],
    calls: Sequence[CallRecord],
    codec: Codec | None,
    dialect: Dialect,
) -> Trajectory:
    """Return a trajectory assembled from pieces in order, with the prompt and the status of `parent`.

    Nothing is generated and no tool runs; `usage` is empty.
    """
    transcript = Transcript(dialect, codec)
    for author, text in pieces:
        if author == "system":
            transcript.append_block(text)
        else:
            transcript.insert(text)
    prompts = parent.samples[0]
    sample = replace(prompts, ids=transcript.ids.tolist(), origins=list(transcript.origins), turn_starts=[])
    return replace(
        parent,
        text=transcript.text,
        segments=transcript.segments(),
        samples=[sample],
        calls=list(calls),
        usage=Usage(),
        turn_rewards=[],
        outcome=None,
    )


def with_visible_thoughts(trajectory: Trajectory, dialect: Dialect) -> Trajectory:
    """Return the trajectory with reasoning from outside the text as thoughts in the text; see `visible_thoughts`."""
    segments = visible_thoughts(trajectory.segments, dialect)
    if segments is trajectory.segments:
        return trajectory
    return replace(trajectory, segments=list(segments), text="".join([segment.text for segment in segments]))


def visible_thoughts(segments: Sequence[Segment], dialect: Dialect) -> Sequence[Segment]:
    """Turn reasoning that a service returned outside the text into thoughts, if the dialect has tags for thoughts.

    If a turn begins with a thought of its own, that is appended to the reasoning in one thought, since a format with
    one thought before each call has no place for two. Only for segments without token ids.
    """
    has_thoughts = isinstance(dialect, TagDialect) and _THINK in dialect.by_name and REASONING not in dialect.by_name
    if not has_thoughts or all(segment.kind != REASONING for segment in segments):
        return segments
    assert isinstance(dialect, TagDialect)
    found: list[Segment] = []
    span: list[Segment] = []
    for segment in [*segments, None]:
        if segment is not None and segment.kind not in SYSTEM_KINDS:
            span.append(segment)
            continue
        found += _with_thought(span, dialect)
        span = []
        if segment is not None:
            found.append(segment)
    return found


def _with_thought(span: Sequence[Segment], dialect: TagDialect) -> list[Segment]:
    said = [segment for segment in span if segment.kind != REASONING]
    reasoning = "\n\n".join(segment.text.strip() for segment in span if segment.kind == REASONING)
    thought = dialect.markers.sub("", reasoning).strip()
    if not thought:
        return said
    think = dialect.by_name[_THINK]
    place = next((place for place, segment in enumerate(said) if segment.kind != TEXT or segment.text.strip()), -1)
    if place < 0 or said[place].kind != _THINK:
        return [Segment(_THINK, f"{think.opening}{thought}{think.closing}", 0, 0), *said]
    own = said[place].text.removeprefix(think.opening)
    if own.removesuffix(think.closing).strip() == thought:
        return said  # some servers repeat it in the text
    return [*said[:place], Segment(_THINK, f"{think.opening}{thought}\n\n{own.lstrip()}", 0, 0), *said[place + 1 :]]
