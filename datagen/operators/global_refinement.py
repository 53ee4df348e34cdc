"""Refine a trajectory globally: rewrite every thought in fewer words and copy everything else; no tool runs.

The critic writes the trajectory again, one thought at a time. Each thought is prefilled with its opening marker and
stops at its closing marker; the parent's text up to the next thought is then copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.agent.dialect import RESULT, TEXT, Segment
from treadle.agent.edit import Piece, assembled
from treadle.core.untrusted.prompt_text import as_data
from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import Workbench
from treadle.datagen.operators.rejection import Rejected
from treadle.datagen.operators.replies import THINK, read_thought

LONGEST = 1.2
"""Maximum length of a new thought, relative to the old one."""


class GlobalRefinement:
    """Operator against overlong reasoning in trajectories with a right answer."""

    name = "global_refine"
    version = 1
    branch = "correct"

    async def apply(self, bench: Workbench) -> Edit:
        """Rewrite the thoughts one by one and reassemble the trajectory."""
        parent = bench.trajectory
        if not _actions(parent.segments):
            raise Rejected("no_actions")
        if not any(_thought(segment, bench) for segment in parent.segments):
            raise Rejected("no_thoughts")
        pieces: list[Piece] = []
        for segment in parent.segments:
            written = "".join(text for _, text in pieces)
            text = await _leaner(bench, written, segment) if _thought(segment, bench) else segment.text
            pieces.append(("system" if segment.kind == RESULT else "model", text))
        made = assembled(parent, pieces, parent.calls, bench.codec, bench.protocol)
        if _actions(made.segments) != _actions(parent.segments):
            raise Rejected("actions_changed", made.text)
        if made.text == parent.text:
            raise Rejected("unchanged")
        return Edit(made)


async def _leaner(bench: Workbench, written: str, segment: Segment) -> str:
    """Return a rewritten thought that continues what was written so far."""
    think = bench.protocol.by_name[THINK]
    values = {"question": bench.question.user_message, "trajectory": bench.trajectory.text}
    reply = await bench.ask(
        "critic", "refine_thoughts", values, prefill=as_data(written + think.opening), stop=(think.closing,)
    )
    thought = read_thought(reply, LONGEST * len(_inside(segment, bench)), bench.protocol)
    return f"{think.opening}{thought}{think.closing}"


def _thought(segment: Segment, bench: Workbench) -> bool:
    """Return whether a segment is a thought with text."""
    return segment.kind == THINK and bool(_inside(segment, bench).strip())


def _inside(segment: Segment, bench: Workbench) -> str:
    think = bench.protocol.by_name[THINK]
    return segment.text.removeprefix(think.opening).removesuffix(think.closing)


def _actions(segments: Sequence[Segment]) -> list[tuple[str, str]]:
    """Return calls, results and answers with their texts."""
    return [(segment.kind, segment.text) for segment in segments if segment.kind not in (TEXT, THINK)]
