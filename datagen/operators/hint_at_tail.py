"""Withdraw the answer into an open thought that ends with a hint, so that the policy thinks again."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import Workbench
from treadle.datagen.operators.reopening import reopened_prefix


class HintAtTail:
    """Operator against too few tool calls: answers given too early."""

    name = "hint_tail"
    version = 1
    branch = "incorrect"

    async def apply(self, bench: Workbench) -> Edit:
        """Withdraw the answer, add a hint, and continue with the policy."""
        hint = bench.choose("hint", bench.hints)
        return Edit(await bench.continue_from(reopened_prefix(bench, hint)), text=hint)
