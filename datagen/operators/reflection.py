"""Withdraw the answer and add a reflection on the whole trajectory, instead of a hint.

Not among the default operators.
"""

from __future__ import annotations

from treadle.datagen.operators.base import Edit
from treadle.datagen.operators.context import Workbench
from treadle.datagen.operators.rejection import Rejected
from treadle.datagen.operators.reopening import reopened_prefix
from treadle.datagen.operators.replies import read_paragraph

LEAD_IN = "Let me check what I have done so far."
"""Prefilled start of the refiner's paragraph."""


class Reflection:
    """Operator against flaws that are not visible in a single step."""

    name = "reflect"
    version = 1
    branch = "incorrect"

    async def apply(self, bench: Workbench) -> Edit:
        """Ask the refiner for a paragraph, withdraw the answer, add the paragraph, and continue with the policy."""
        if not bench.steps:
            raise Rejected("no_steps")
        values = {"question": bench.question.user_message, "trajectory": bench.trajectory.text}
        reply = await bench.ask("refiner", "reflect", values, prefill=LEAD_IN, stop=bench.protocol.stops)
        paragraph = read_paragraph(reply, LEAD_IN, "reflection", bench.protocol)
        if bench.protocol.markers.search(paragraph):
            raise Rejected("marker_in_reflection", reply.text)
        return Edit(await bench.continue_from(reopened_prefix(bench, paragraph)), text=paragraph)
