"""Locate the first flawed step of a trajectory; the result is shared by all operators that need it."""

from __future__ import annotations

from treadle.datagen.operators.context import Workbench
from treadle.datagen.operators.rejection import Rejected
from treadle.datagen.operators.replies import read_step_number
from treadle.datagen.pools.steps import numbered

ANALYSIS = "Analysis:"
"""Label at which the reply is stopped, because only the number before it is used."""


async def flawed_step(bench: Workbench) -> int:
    """Return the 1-based number of the parent's first flawed step; raise Rejected if the critic's reply has none.

    The last step may be the flawed one.
    """
    return await bench.once("locate_flaw", _locate)


async def _locate(bench: Workbench) -> int:
    steps = bench.steps
    if not steps:
        raise Rejected("no_steps")
    values = {"question": bench.question.user_message, "steps": numbered([step.text for step in steps])}
    reply = await bench.ask("critic", "locate_flaw", values, stop=(*bench.protocol.stops, ANALYSIS))
    return read_step_number(reply, len(steps))
