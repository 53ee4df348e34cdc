"""Insert a hint after the first flawed step and its result, so that the policy thinks again."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import Workbench
from treadle.datagen.operators.flaw_location import flawed_step
from treadle.datagen.operators.reopening import reopened_prefix
from treadle.datagen.operators.replies import THINK


class HintAfterStep:
    """Operator against too few tool calls at an early step; the policy finds its own way out of the flaw."""

    name = "hint_step"
    version = 1
    branch = "incorrect"

    async def apply(self, bench: Workbench) -> Edit:
        """Start a thought with a hint after the flawed step; withdraw the answer instead if the step has no result."""
        number = await flawed_step(bench)
        hint = bench.choose("hint", bench.hints)
        if bench.steps[number - 1].has_result:
            prefix = bench.extend(bench.prefix(number), bench.protocol.by_name[THINK].opening + hint)
        else:
            prefix = reopened_prefix(bench, hint)
        return Edit(await bench.continue_from(prefix), number, hint)
