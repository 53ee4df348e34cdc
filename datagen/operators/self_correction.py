"""Explain and replace the first flawed step, then continue from it with a new rollout."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.flaw_location import ANALYSIS, flawed_step
from treadle.datagen.operators.replies import read_new_step, read_paragraph
from treadle.datagen.pools.steps import numbered

LEAD_IN = "The trouble with this step is that"
"""Prefilled start of the analysis: the refiner is not asked whether there is a flaw, but which one."""


class SelfCorrection:
    """Operator against erroneous reasoning and unsuitable calls."""

    name = "self_correct"
    version = 1
    branch = "incorrect"

    async def apply(self, context: OperatorContext) -> Edit:
        """Let the refiner explain and replace the flawed step, then continue with the policy."""
        number = await flawed_step(context)
        steps = numbered([step.text for step in context.steps[:number]])
        values = {"question": context.question.user_message, "steps": steps}
        stops = context.dialect.stops
        begun = f"Step: {number}\n{ANALYSIS} {LEAD_IN}"
        reply = await context.ask("refiner", "analyse_flaw", values, prefill=begun, stop=stops)
        analysis = read_paragraph(reply, LEAD_IN, "analysis", context.dialect)
        reply = await context.ask("refiner", "replace_step", {**values, "analysis": analysis}, stop=stops)
        prefix = context.extend(context.prefix(number - 1), read_new_step(reply, context.dialect))
        return Edit(await context.continue_from(prefix), number, analysis)
