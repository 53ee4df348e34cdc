"""Refine a trajectory globally: rewrite every thought in fewer words and copy everything else; no tool runs.

The critic writes the trajectory again, one thought at a time. Each thought is prefilled with its opening marker and
stops at its closing marker; the parent's text up to the next thought is then copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.agent.dialects.base import RESULT, TEXT, Segment
from treadle.agent.edit import Piece, assembled
from treadle.core.untrusted.prompt_text import as_data
from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.operators.replies import THINK, read_thought

MAX_LENGTH_RATIO = 1.2
"""Maximum length of a new thought, relative to the old one."""


class GlobalRefinement:
    """Operator against overlong reasoning in trajectories with a right answer."""

    name = "global_refine"
    version = 1
    branch = "correct"

    async def apply(self, context: OperatorContext) -> Edit:
        """Rewrite the thoughts one by one and reassemble the trajectory."""
        parent = context.trajectory
        if not _actions(parent.segments):
            raise EditRejected("no_actions")
        if not any(_thought(segment, context) for segment in parent.segments):
            raise EditRejected("no_thoughts")
        pieces: list[Piece] = []
        for segment in parent.segments:
            written = "".join(text for _, text in pieces)
            text = await _shorten_thought(context, written, segment) if _thought(segment, context) else segment.text
            pieces.append(("system" if segment.kind == RESULT else "model", text))
        made = assembled(parent, pieces, parent.calls, context.codec, context.dialect)
        if _actions(made.segments) != _actions(parent.segments):
            raise EditRejected("actions_changed", made.text)
        if made.text == parent.text:
            raise EditRejected("unchanged")
        return Edit(context.rewritten(made))


async def _shorten_thought(context: OperatorContext, written: str, segment: Segment) -> str:
    """Return a rewritten thought that continues what was written so far."""
    think = context.dialect.by_name[THINK]
    values = {"question": context.question.user_message, "trajectory": context.trajectory.text}
    reply = await context.ask(
        "critic", "refine_thoughts", values, prefill=as_data(written + think.opening), stop=(think.closing,)
    )
    thought = read_thought(reply, MAX_LENGTH_RATIO * len(_thought_text(segment, context)), context.dialect)
    return f"{think.opening}{thought}{think.closing}"


def _thought(segment: Segment, context: OperatorContext) -> bool:
    """Return whether a segment is a thought with text."""
    return segment.kind == THINK and bool(_thought_text(segment, context).strip())


def _thought_text(segment: Segment, context: OperatorContext) -> str:
    think = context.dialect.by_name[THINK]
    return segment.text.removeprefix(think.opening).removesuffix(think.closing)


def _actions(segments: Sequence[Segment]) -> list[tuple[str, str]]:
    """Return calls, results and answers with their texts."""
    return [(segment.kind, segment.text) for segment in segments if segment.kind not in (TEXT, THINK)]
