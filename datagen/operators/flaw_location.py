"""Locate the first flawed step of a trajectory; the result is shared by all operators that need it."""

from __future__ import annotations

from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.operators.replies import read_step_number
from treadle.datagen.pools.steps import numbered

ANALYSIS = "Analysis:"
"""Label at which the reply is stopped, because only the number before it is used."""


async def flawed_step(context: OperatorContext) -> int:
    """Return the 1-based number of the parent's first flawed step; raise EditRejected if the critic's reply has none.

    The last step may be the flawed one.
    """
    return await context.once("locate_flaw", _locate)


async def _locate(context: OperatorContext) -> int:
    steps = context.steps
    if not steps:
        raise EditRejected("no_steps")
    values = {"question": context.question.user_message, "steps": numbered([step.text for step in steps])}
    reply = await context.ask("critic", "locate_flaw", values, stop=(*context.dialect.stops, ANALYSIS))
    return read_step_number(reply, len(steps))
