"""Rewrite the first step with redundancy, then continue from it with a new rollout."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.operators.replies import read_redundancy
from treadle.datagen.pools.steps import numbered


class RedundantModification:
    """Operator against redundant reasoning and redundant calls in trajectories with a right answer."""

    name = "redundant_mod"
    version = 1
    branch = "correct"

    async def apply(self, context: OperatorContext) -> Edit:
        """Ask the critic for the step and a simpler version, replace the step, and continue with the policy."""
        steps = context.steps
        if not steps:
            raise EditRejected("no_steps")
        values = {"question": context.question.user_message, "steps": numbered([step.text for step in steps])}
        reply = await context.ask("critic", "redundancy", values, stop=context.dialect.stops)
        found = read_redundancy(reply, len(steps), context.dialect)
        prefix = context.extend(context.prefix(found.step - 1), found.new_step)
        return Edit(await context.continue_from(prefix), found.step, found.analysis or found.new_step)
