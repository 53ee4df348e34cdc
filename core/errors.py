"""Define all errors that a user may see, by the part of the system that fails.

Three rules apply. A message explains what happened, with which thing, and what to do about it. `retryable` separates
failures that may pass (an endpoint that is down) from those that will not (a wrong key). The command line prints a
`TreadleError` as one line and exits with its `exit_code`; any other exception is a bug in Treadle.
"""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean '...'?)` with the known name that is most like a wrong one; empty if no name is close."""
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


class TreadleError(Exception):
    """Base class of all errors that a user may see."""

    retryable: bool = False
    exit_code: int = 1


class Interrupted(TreadleError):
    """Interruption of the command by Ctrl-C, SIGTERM or the end of its terminal."""

    exit_code = 130


class ConfigError(TreadleError):
    """Error in the configuration; nothing has been started."""

    exit_code = 2


class DataError(TreadleError):
    """Input data that cannot be used; the message names the file, and the row if there is one."""

    exit_code = 2


class StorageError(TreadleError):
    """Failure to read or write the root: disk full, read-only, permission denied."""


class ArtifactError(TreadleError):
    """Artifact that is missing, damaged, or of a schema version that this Treadle does not read."""


class RunError(TreadleError):
    """Run that cannot be opened, is locked by another process, or was made with a different configuration."""


class UnknownRun(RunError):
    """Name of a run that does not exist."""

    exit_code = 2


class LockedConfig(RunError):
    """Configuration that would change the results of an existing run."""

    exit_code = 2


class StageFailed(TreadleError):
    """Failure of a stage to produce its result; the message names the cause and the counts."""


class JobsPending(StageFailed):
    """Stage result that is incomplete because infrastructure failed; resuming the run tries the pending units again.

    It is retryable only if one of the causes may pass: not if, for example, the API key was refused each time.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class BudgetExceeded(StageFailed):
    """Exhausted token, call or money budget; the run can still be resumed."""


class ModelError(TreadleError):
    """Model server that refused a request or returned an unusable answer; a retry does not help."""


class EndpointUnavailable(ModelError):
    """Failure to reach any endpoint of a model, or to get an answer from one, before the deadline."""

    retryable = True


class ContextTooLong(ModelError):
    """Prompt that the server rejected because it exceeds the model's context window; final."""


class DeadlineExceeded(ModelError):
    """Timeout of a request or a rollout."""


class ToolError(TreadleError):
    """Wrong setup of a tool. A wrong call by the agent is not an error but an outcome."""


class SandboxError(ToolError):
    """Sandbox that cannot isolate programs on this machine as configured."""


class EngineError(TreadleError):
    """Failure to install an engine, to fetch a model, or of a program that Treadle runs, such as a model server.

    If that program has a log, the message usually names the log or ends with its last lines.
    """
