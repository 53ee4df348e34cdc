"""Define the interface of an operator, which makes a new trajectory from one trajectory of a pool, or rejects it.

An operator is a class without constructor arguments, named in `pools.operators` by its short name, by an entry point of
the group `treadle.operators`, or as `module:Class`. It gets everything from its `OperatorContext` and keeps no state.
All its random choices derive from the context's seed, so that a resumed run repeats it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from treadle.agent.trajectory import Trajectory
from treadle.core.untrusted.concealment import exits_as_errors

if TYPE_CHECKING:
    from treadle.datagen.operators.context import OperatorContext

Branch = Literal["correct", "incorrect"]


@dataclass(frozen=True, slots=True)
class Edit:
    """The result of an operator.

    Attributes:
        trajectory: The new trajectory.
        step: 1-based step of the parent that was replaced or followed by a hint; None if not applicable.
        text: The hint, the analysis or the new step.
    """

    trajectory: Trajectory
    step: int | None = None
    text: str = ""

    def __post_init__(self) -> None:
        """Raise TypeError for a wrong type, which would otherwise be noticed only when the rows are written."""
        kinds: tuple[tuple[object, Any], ...] = (
            (self.trajectory, Trajectory),
            (self.step, int | None),
            (self.text, str),
        )
        if not all(isinstance(value, kind) for value, kind in kinds):
            raise TypeError("Edit needs a Trajectory, a step number or None, and a text")


class Operator(Protocol):
    """Interface of an operator."""

    name: ClassVar[str]
    """Name in the rows; lower-case letters, digits and underscores, starting with a letter."""
    version: ClassVar[int]
    """Version; raise it when the operator's results change, so that earlier pools are not reused."""
    branch: ClassVar[Branch]
    """Branch of the operator: whether it applies to trajectories with a right answer or to the others."""
    edits: ClassVar[bool] = True
    """Whether it edits the parent or continues a prefix of it; otherwise it only makes new rollouts. Operators that
    edit are refused for tools that keep state, for native calls of a model that is asked with prompts instead of
    messages, and for a context manager that makes several contexts."""
    needs_prefill: ClassVar[tuple[str, ...]] = ()
    """Roles (`policy`, `critic`, `refiner`) whose model must continue the beginning of a reply verbatim. A model behind
    a chat service is refused: the service gets this beginning in a message, and may not continue it."""

    async def apply(self, context: OperatorContext) -> Edit:
        """Make a trajectory from `context.parent`; raise EditRejected if that is not possible.

        Any other exception, or another result, fails only this operator: it is logged, and the question ends as
        `partial`. Errors of models and tools (ModelError, ToolError) propagate and leave the question pending.
        """
        ...


async def edit_of(operator: Operator, context: OperatorContext) -> Edit:
    """Return the edit that an operator makes of the parent; raise TypeError if it returns anything else.

    Exceptions that the operator raises propagate.
    """
    with exits_as_errors():
        edit: object = await operator.apply(context)
    if not isinstance(edit, Edit):
        raise TypeError(f"apply returned {type(edit).__name__} instead of an Edit")
    return edit
