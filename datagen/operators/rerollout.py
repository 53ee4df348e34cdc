"""Roll out an answered question again, independently of the parent."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext


class Rerollout:
    """Operator that adds variety to questions with a right answer."""

    name = "rerollout"
    version = 1
    branch = "correct"
    edits = False

    async def apply(self, context: OperatorContext) -> Edit:
        """Return a new rollout."""
        return Edit(await context.roll_out())
