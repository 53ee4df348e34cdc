"""Reflection: a paragraph on what went wrong in the whole trajectory takes the place of the hint at its tail.

Not among the default operators.
"""

from __future__ import annotations

from treadle.datagen.operators.base import Edit, Rejected
from treadle.datagen.operators.reopening import reopened_prefix
from treadle.datagen.operators.replies import read_paragraph
from treadle.datagen.workbench import Workbench

LEAD_IN = "Let me check what I have done so far."
"""With which the paragraph is begun for the refiner."""


class Reflection:
    """Treats flaws that no single step shows."""

    name = "reflect"
    version = 1
    branch = "incorrect"

    async def apply(self, bench: Workbench) -> Edit:
        """Ask the refiner for the paragraph, take the answer back, add it, and let the policy go on."""
        if not bench.steps:
            raise Rejected("no_steps")
        values = {"question": bench.question.user_message, "trajectory": bench.trajectory.text}
        reply = await bench.ask("refiner", "reflect", values, prefill=LEAD_IN, stop=bench.protocol.stops)
        paragraph = read_paragraph(reply, LEAD_IN, "reflection", bench.protocol)
        if bench.protocol.markers.search(paragraph):
            raise Rejected("marker_in_reflection", reply.text)
        return Edit(await bench.continue_from(reopened_prefix(bench, paragraph)), text=paragraph)
