"""Flaw location: which step went wrong first. Found once for all operators that start from it."""

from __future__ import annotations

from treadle.datagen.operators.base import Rejected
from treadle.datagen.operators.replies import read_step_number
from treadle.datagen.steps import numbered
from treadle.datagen.workbench import Workbench

ANALYSIS = "Analysis:"
"""The label at which the answer is stopped: only the number before it is used."""


async def flawed_step(bench: Workbench) -> int:
    """1-based number of the parent's first flawed step, the last step included; raises Rejected."""
    return await bench.once("locate_flaw", _locate)


async def _locate(bench: Workbench) -> int:
    steps = bench.steps
    if not steps:
        raise Rejected("no_steps")
    values = {"question": bench.question.user_message, "steps": numbered([step.text for step in steps])}
    reply = await bench.ask("critic", "locate_flaw", values, stop=(*bench.protocol.stops, ANALYSIS))
    return read_step_number(reply, len(steps))
