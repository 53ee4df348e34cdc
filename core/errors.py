"""The one exception tree, by the boundary that was crossed.

Three rules. A message says what happened, with which thing, and what to do about it. `retryable` tells apart what
may pass by itself (an endpoint that is down) from what will not (a wrong key). The command line prints a
`TreadleError` as one line and exits with its `exit_code`; anything else is a bug of ours.
"""

from __future__ import annotations


class TreadleError(Exception):
    """Base of every error that a user may meet."""

    retryable: bool = False
    exit_code: int = 1


class ConfigError(TreadleError):
    """The configuration is wrong; nothing was started."""

    exit_code = 2


class DataError(TreadleError):
    """Input data cannot be used: names the file, and the row where there is one."""

    exit_code = 2


class StorageError(TreadleError):
    """Reading or writing the root failed: disk full, read-only, permission denied."""


class ArtifactError(TreadleError):
    """An artifact is missing, damaged, or of a schema that this version does not read."""


class RunError(TreadleError):
    """A run cannot be opened, is locked by another process, or was made with another configuration."""


class StageFailed(TreadleError):
    """A stage ended without what was asked of it: names the cause and the counts."""


class RolloutsOwed(StageFailed):
    """Infrastructure kept some units from finishing; a resumed run tries them again.

    Retryable by itself only where a cause may pass: not where, say, a key was refused each time.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class BudgetExceeded(StageFailed):
    """The token, call or money budget is spent; the run stays resumable."""


class ModelError(TreadleError):
    """A model server refused a request or answered with something unusable; asking again does not help."""


class EndpointUnavailable(ModelError):
    """No endpoint of a model could be reached, or all kept failing, until the deadline."""

    retryable = True


class ContextTooLong(ModelError):
    """The server rejected a prompt because it does not fit into the model's window. Final."""


class DeadlineExceeded(ModelError):
    """The time given to a request or a rollout ran out."""


class ToolError(TreadleError):
    """A tool is set up wrongly (not: the agent called it wrongly, which is an outcome)."""


class SandboxError(ToolError):
    """Programs cannot be isolated here as configured."""


class EngineError(TreadleError):
    """An engine environment or a child process failed: carries the end of its log."""
