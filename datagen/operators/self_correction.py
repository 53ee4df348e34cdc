"""Explain and replace the first flawed step, then continue from it with a new rollout."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import Workbench
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

    async def apply(self, bench: Workbench) -> Edit:
        """Let the refiner explain and replace the flawed step, then continue with the policy."""
        number = await flawed_step(bench)
        steps = numbered([step.text for step in bench.steps[:number]])
        values = {"question": bench.question.user_message, "steps": steps}
        stops = bench.protocol.stops
        begun = f"Step: {number}\n{ANALYSIS} {LEAD_IN}"
        reply = await bench.ask("refiner", "analyse_flaw", values, prefill=begun, stop=stops)
        analysis = read_paragraph(reply, LEAD_IN, "analysis", bench.protocol)
        reply = await bench.ask("refiner", "replace_step", {**values, "analysis": analysis}, stop=stops)
        prefix = bench.extend(bench.prefix(number - 1), read_new_step(reply, bench.protocol))
        return Edit(await bench.continue_from(prefix), number, analysis)
