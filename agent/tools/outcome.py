"""Define the interface of tools: call context and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

OutcomeStatus = Literal["ok", "empty", "error", "timeout", "invalid", "refused"]
"""`invalid`: the argument is unusable (such as an empty query). `refused`: over the tool's limit, not executed."""

NOT_ON_RECORD = "not on record"
"""Note of a call that a web replay has no entry for, if the replay continues nevertheless."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """Outcome of one tool call. `text` is what the agent sees between the result tags, cut to the tool's limit.

    `note` adds details to the status, for the record of the call. Tokens are those of a model that the tool used.
    """

    status: OutcomeStatus
    text: str
    seconds: float = 0.0
    cached: bool = False
    note: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sources: tuple[str, ...] = ()
    """Keys of the web record entries that the text was made from."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """State of the rollout that a tool may use.

    Attributes:
        question: Text that the model was asked.
        log: The assistant turn so far, in order: model text up to each call, and result blocks; this call is last.
        seed: Seed of this call, in [0, 2**31).
        budget_s: Seconds that the call may run, not counting any wait before that; None if the deadline limits the
            waiting and the running together.
        route: Where the question's searches go: `local`, `web` or `both`; None if the question does not say.
    """

    question: str
    log: Sequence[str]
    seed: int
    budget_s: float | None = None
    route: str | None = None


class Tool(Protocol):
    """Interface of tools whose only argument is a text. Many rollouts use one tool concurrently on one event loop.

    Usage: `async with tool:` around all calls. `call` never raises for a mistake of the agent. It raises `ToolError`
    (retryable or not) only if the tool itself is out of order.
    """

    name: str

    async def __aenter__(self) -> Tool: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Run one call until `deadline`, a time of the work clock (`treadle.core.work_clock`), or the tool's own limit.

        A tool that can separate waiting from running uses `context.budget_s`, if it is set, instead of the deadline.
        """
        ...


def clip(text: str, limit: int | None, head_share: float = 0.5) -> str:
    """Cut a text to `limit` characters, keeping its head and tail and noting how many characters are left out."""
    if limit is None or len(text) <= limit:
        return text
    note = f"\n... [{len(text) - limit} characters left out] ...\n"
    room = limit - len(note)
    if room <= 0:
        return text[-limit:] if limit > 0 else ""
    note = f"\n... [{len(text) - room} characters left out] ...\n"
    room = limit - len(note)
    head = int(room * head_share)
    return text[:head] + note + text[len(text) - (room - head) :]
