"""Trajectories with something put into them: prefixes that end in given text, and turns put together from pieces.

What is put in gets the ids of its own encoding and the origin of text that nobody sampled here, so that it has no
log-prob loss in RL; as a target of fine-tuning it counts like all model text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from treadle.agent.environment import CallRecord
from treadle.agent.protocol import TOOL_PROTOCOL, Protocol
from treadle.agent.rollout import Trajectory, Usage
from treadle.agent.transcript import Codec, Prefix, Transcript

Piece = tuple[Literal["model", "system"], str]
"""Who wrote it, and the text; a system piece is one whole result block."""


def extended(prefix: Prefix, text: str, codec: Codec | None, protocol: Protocol = TOOL_PROTOCOL) -> Prefix:
    """A prefix with model text after it; it is pending where the text ends with a call or an answer.

    Raises ValueError where the prefix itself ends with a call that has no result, or with an answer.
    """
    if prefix.pending:
        raise ValueError("a prefix that ends with an open call or an answer cannot be extended")
    transcript = Transcript(protocol, codec, prefix)
    transcript.insert(text)
    return transcript.prefix(prefix.calls, prefix.turn)


def empty_prefix() -> Prefix:
    """The prefix of a rollout in which nothing was said yet."""
    return Prefix((), (), (), (), 0, False)


def assembled(
    parent: Trajectory,
    pieces: Iterable[Piece],
    calls: Sequence[CallRecord],
    codec: Codec | None,
    protocol: Protocol = TOOL_PROTOCOL,
) -> Trajectory:
    """A trajectory put together from pieces in their order, with the prompt and the status of its parent.

    Nothing is generated and no tool runs; `usage` is empty.
    """
    transcript = Transcript(protocol, codec)
    for author, text in pieces:
        if author == "system":
            transcript.append_block(text)
        else:
            transcript.insert(text)
    return replace(
        parent,
        text=transcript.text,
        segments=transcript.segments(),
        output_ids=transcript.ids.tolist(),
        token_origin=list(transcript.origins),
        calls=list(calls),
        usage=Usage(),
    )
