"""Classify the errors of an engine's process by the kinds that `treadle.rl.training.launch` distinguishes."""

from __future__ import annotations

import traceback

from treadle.core.engines.errors import Diverged, NothingLearned, is_out_of_memory
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import BaseModelMissing
from treadle.core.errors import ConfigError, EndpointUnavailable, ToolError
from treadle.rl.engine.dynamic_sampling import NoSpread


class BadPlan(Exception):
    """Error for a plan that the engine rejects, or whose files do not match it."""


class BadEnvironment(Exception):
    """Error for an agent environment that cannot be opened in this engine, or that differs from the training plan's."""


_KINDS: dict[type[Exception], str] = {
    BadPlan: "arguments",
    ConfigError: "arguments",
    BadEnvironment: "environment",
    ToolError: "tools",
    EndpointUnavailable: "tools",
    BaseModelMissing: "no_model",
    Diverged: "diverged",
    NothingLearned: "nothing_learned",
    NoSpread: "no_spread",
}


def kind_of(error: BaseException) -> str:
    """Return the kind of an error; `other` if it has none."""
    if is_out_of_memory(error):
        return "no_memory"
    return next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "other")


def report(error: Exception, events: EventFile, rank: int = 0) -> None:
    """Print the traceback to the log and write the event `error`; readers use only the first such event."""
    traceback.print_exception(error)
    message = f"{type(error).__name__}: {error}"[:2000] + (f" (process {rank})" if rank else "")
    events.write("error", kind=kind_of(error), message=message, rank=rank)
