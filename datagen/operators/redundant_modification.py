"""Rewrite the first step with redundancy, then continue from it with a new rollout."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import Workbench
from treadle.datagen.operators.rejection import Rejected
from treadle.datagen.operators.replies import read_redundancy
from treadle.datagen.pools.steps import numbered


class RedundantModification:
    """Operator against redundant reasoning and redundant calls in trajectories with a right answer."""

    name = "redundant_mod"
    version = 1
    branch = "correct"

    async def apply(self, bench: Workbench) -> Edit:
        """Ask the critic for the step and a simpler version, replace the step, and continue with the policy."""
        steps = bench.steps
        if not steps:
            raise Rejected("no_steps")
        values = {"question": bench.question.user_message, "steps": numbered([step.text for step in steps])}
        reply = await bench.ask("critic", "redundancy", values, stop=bench.protocol.stops)
        found = read_redundancy(reply, len(steps), bench.protocol)
        prefix = bench.extend(bench.prefix(found.step - 1), found.new_step)
        return Edit(await bench.continue_from(prefix), found.step, found.analysis or found.new_step)
