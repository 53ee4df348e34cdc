"""What a tool gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

OutcomeStatus = Literal["ok", "empty", "error", "timeout", "invalid", "refused"]
"""`invalid`: the argument cannot be used (an empty query). `refused`: over the tool's limit, not executed."""

NOT_ON_RECORD = "not on record"
"""Note of a call that a replay of the web could not answer, where it goes on all the same."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Outcome of one tool call. `text` is what the agent sees between the result tags, cut to the tool's limit.

    `note` says what the status does not, for the record of the call. Tokens are those of a model that the tool asked.
    """

    status: OutcomeStatus
    text: str
    seconds: float = 0.0
    cached: bool = False
    note: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sources: tuple[str, ...] = ()
    """Keys of the entries of a web record that the text was made of."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a tool may know of the rollout that calls it.

    Attributes:
        question: As the model was asked it.
        log: The assistant's turn so far: model text up to each call and result blocks, in order; this call last.
        seed: Of this call, in [0, 2**31).
        budget_s: Seconds that the call may run, however long it waited before that; None where its deadline bounds
            both together.
        route: Where the question's searches go: `local`, `web`, `both`, or None where it does not say.
    """

    question: str
    log: Sequence[str]
    seed: int
    budget_s: float | None = None
    route: str | None = None


class Tool(Protocol):
    """A tool of the environment. `name` is also its tag. Used by many rollouts at once on one event loop.

    Usage: `async with tool:` around all calls. `call` never raises for anything the agent did; it raises
    `ToolError` (retryable or not) only when the tool itself is out of order.
    """

    name: str

    async def __aenter__(self) -> Tool: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Run one call; `deadline` is in the event loop's clock and bounds it together with the tool's own limit.

        A tool that can tell waiting from running goes by `context.budget_s` in place of it, where there is one.
        """
        ...
