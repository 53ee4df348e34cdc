"""Re-rollout: one more fresh rollout of a question that was answered, independent of its parent."""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.workbench import Workbench


class Rerollout:
    """Adds variety to what already works."""

    name = "rerollout"
    version = 1
    branch = "correct"

    async def apply(self, bench: Workbench) -> Edit:
        """A fresh rollout."""
        return Edit(await bench.roll_out())
