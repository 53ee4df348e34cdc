"""Insert a hint after the first flawed step and its result, so that the policy thinks again."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.flaw_location import flawed_step
from treadle.datagen.operators.reopening import reopen_prefix
from treadle.datagen.operators.replies import THINK


class HintAfterStep:
    """Operator against too few tool calls: inserts a hint after the first flawed step; the policy continues from it."""

    name = "hint_step"
    version = 1
    branch = "incorrect"

    async def apply(self, context: OperatorContext) -> Edit:
        """Start a thought with a hint after the flawed step; withdraw the answer instead if the step has no result."""
        number = await flawed_step(context)
        hint = context.choose("hint", context.hints)
        if context.steps[number - 1].has_result:
            prefix = context.extend(context.prefix(number), context.dialect.by_name[THINK].opening + hint)
        else:
            prefix = reopen_prefix(context, hint)
        return Edit(await context.continue_from(prefix), number, hint)
