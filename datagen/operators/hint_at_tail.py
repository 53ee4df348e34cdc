"""Withdraw the answer into an open thought that ends with a hint, so that the policy thinks again."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.reopening import reopen_prefix


class HintAtTail:
    """Operator against too few tool calls: withdraws an answer that was given too early, and adds a hint."""

    name = "hint_tail"
    version = 1
    branch = "incorrect"

    async def apply(self, context: OperatorContext) -> Edit:
        """Withdraw the answer, add a hint, and continue with the policy."""
        hint = context.choose("hint", context.hints)
        return Edit(await context.continue_from(reopen_prefix(context, hint)), text=hint)
