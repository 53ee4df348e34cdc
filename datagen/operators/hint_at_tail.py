"""Hint at the tail: the answer is taken back into an open thought, and the policy is made to think again."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.reopening import reopened_prefix
from treadle.datagen.workbench import Workbench


class HintAtTail:
    """Treats insufficient tool calls: answers given too early."""

    name = "hint_tail"
    version = 1
    branch = "incorrect"

    async def apply(self, bench: Workbench) -> Edit:
        """Take the answer back, add a hint, and let the policy go on."""
        hint = bench.choose("hint", bench.hints)
        return Edit(await bench.continue_from(reopened_prefix(bench, hint)), text=hint)
