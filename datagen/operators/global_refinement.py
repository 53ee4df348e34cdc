"""Global refinement: every thought is rewritten shorter, everything else stays; no tool runs.

The critic writes the trajectory again, but only its thoughts are its own: each is begun for it and ends at its closing
marker, and what follows in the parent is then copied before it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.agent.edit import Piece, assembled
from treadle.agent.prompts import as_data
from treadle.agent.protocol import RESULT, TEXT, Segment
from treadle.datagen.operators.base import Edit, Rejected
from treadle.datagen.operators.replies import THINK, read_thought
from treadle.datagen.workbench import Workbench

LONGEST = 1.2
"""A new thought may be so many times as long as the old one."""


class GlobalRefinement:
    """Treats reasoning that goes on too long in trajectories that answered rightly."""

    name = "global_refine"
    version = 1
    branch = "correct"

    async def apply(self, bench: Workbench) -> Edit:
        """Rewrite the thoughts one by one and put the trajectory together again."""
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
    """A thought written again after what was written so far."""
    think = bench.protocol.by_name[THINK]
    values = {"question": bench.question.user_message, "trajectory": bench.trajectory.text}
    reply = await bench.ask(
        "critic", "refine_thoughts", values, prefill=as_data(written + think.opening), stop=(think.closing,)
    )
    thought = read_thought(reply, LONGEST * len(_inside(segment, bench)), bench.protocol)
    return f"{think.opening}{thought}{think.closing}"


def _thought(segment: Segment, bench: Workbench) -> bool:
    """Whether there is anything to rewrite in a segment."""
    return segment.kind == THINK and bool(_inside(segment, bench).strip())


def _inside(segment: Segment, bench: Workbench) -> str:
    think = bench.protocol.by_name[THINK]
    return segment.text.removeprefix(think.opening).removesuffix(think.closing)


def _actions(segments: Sequence[Segment]) -> list[tuple[str, str]]:
    """Calls, results and answers with their texts."""
    return [(segment.kind, segment.text) for segment in segments if segment.kind not in (TEXT, THINK)]
