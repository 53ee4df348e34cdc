"""What an operator is: it takes one trajectory of a pool and makes another one, or says why it does not.

An operator is a class without arguments, named in `pools.operators` by its short name, by an entry point of the group
`treadle.operators`, or as `module:Class`. All it needs it gets from its `Workbench`; it holds no state, and everything
it draws derives from the workbench's seed, so that a resumed run repeats it answer by answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from treadle.agent.rollout import Trajectory

if TYPE_CHECKING:
    from treadle.datagen.workbench import Workbench

Branch = Literal["correct", "incorrect"]


@dataclass(frozen=True, slots=True)
class Edit:
    """What an operator made.

    Attributes:
        trajectory: The new trajectory.
        step: 1-based step of the parent that was replaced or followed by a hint; None where that has no meaning.
        text: The hint, the analysis or the new step.
    """

    trajectory: Trajectory
    step: int | None = None
    text: str = ""

    def __post_init__(self) -> None:
        """Raises TypeError at once: a wrong type would be noticed only when the rows are written."""
        kinds: tuple[tuple[object, Any], ...] = (
            (self.trajectory, Trajectory),
            (self.step, int | None),
            (self.text, str),
        )
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise TypeError("an Edit has a Trajectory, the number of a step or None, and a text")


class Rejected(Exception):
    """An operator came to nothing, for a reason that is the model's or the trajectory's, not a failure.

    Attributes:
        reason: A code such as `unparseable_reply`; counted in the stage's report.
        reply: The model's reply that was rejected, as it came; empty where none was.
    """

    def __init__(self, reason: str, reply: str = "") -> None:
        super().__init__(reason)
        if not all(isinstance(text, str) for text in (reason, reply)):
            raise TypeError("a Rejected has a code and the text of a reply")
        self.reason = reason
        self.reply = reply


class Operator(Protocol):
    """One way to make a trajectory from another one."""

    name: ClassVar[str]
    """Stands in the rows; letters, digits and underscores."""
    version: ClassVar[int]
    """Raise it when it would make something else: earlier pools are then not reused."""
    branch: ClassVar[Branch]
    """Whether it is applied to trajectories with a right answer or to the others."""

    async def apply(self, bench: Workbench) -> Edit:
        """Make a trajectory from `bench.parent`; raises Rejected.

        Any other exception, or another result, costs this operator alone: it is logged, and the question ends as
        `partial`. Errors of models and tools (ModelError, ToolError) pass through: the question is owed.
        """
        ...
