"""What can be wrong inside an engine's process, by the kinds that `treadle.rl.launch` tells apart."""

from __future__ import annotations

import traceback

from treadle.core.engines.events import EventFile
from treadle.core.errors import ConfigError, EndpointUnavailable, ToolError

_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class BadPlan(Exception):
    """The engine does not accept the plan, or the files with it are not those that it speaks of."""


class BadEnvironment(Exception):
    """The policy's environment cannot be opened here, or is another one."""


class Diverged(Exception):
    """A loss, a gradient or the policy's scores are no numbers any more."""


class Unmoved(Exception):
    """Training ended and the weights are what they were, or moved without a gradient."""


_KINDS: dict[type[Exception], str] = {
    BadPlan: "arguments",
    ConfigError: "arguments",
    BadEnvironment: "environment",
    ToolError: "tools",
    EndpointUnavailable: "tools",
    Diverged: "diverged",
    Unmoved: "unmoved",
}


def kind_of(error: BaseException) -> str:
    """The kind of an error, `other` for one that has none."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return "no_memory"
    return next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "other")


def report(error: Exception, events: EventFile, rank: int = 0) -> None:
    """Tell of an error that ends the process, beside the traceback in the log; of several, the first one counts."""
    traceback.print_exception(error)
    message = f"{type(error).__name__}: {error}"[:2000] + (f" (process {rank})" if rank else "")
    events.write("error", kind=kind_of(error), message=message, rank=rank)
