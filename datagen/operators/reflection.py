"""Withdraw the answer and add a reflection on the whole trajectory, instead of a hint.

Not among the default operators.
"""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.operators.reopening import reopen_prefix
from treadle.datagen.operators.replies import read_paragraph

LEAD_IN = "Let me check what I have done so far."
"""Prefilled start of the refiner's paragraph."""


class Reflection:
    """Operator against flaws that are not visible in a single step."""

    name = "reflect"
    version = 1
    branch = "incorrect"

    async def apply(self, context: OperatorContext) -> Edit:
        """Ask the refiner for a paragraph, withdraw the answer, add the paragraph, and continue with the policy."""
        if not context.steps:
            raise EditRejected("no_steps")
        values = {"question": context.question.user_message, "trajectory": context.trajectory.text}
        reply = await context.ask("refiner", "reflect", values, prefill=LEAD_IN, stop=context.dialect.stops)
        paragraph = read_paragraph(reply, LEAD_IN, "reflection", context.dialect)
        if context.dialect.markers.search(paragraph):
            raise EditRejected("marker_in_reflection", reply.text)
        return Edit(await context.continue_from(reopen_prefix(context, paragraph)), text=paragraph)
