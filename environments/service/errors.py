"""Define the errors that the environment service sends: a code, one line, and whether a retry can help."""

from __future__ import annotations

from typing import Any

CODES: dict[str, tuple[int, bool]] = {
    "bad_request": (400, False),
    "unknown_env": (404, False),
    "unknown_task": (404, False),
    "instance_not_found": (404, False),
    "instance_exists": (409, False),
    "request_conflict": (409, False),
    "reply_dropped": (410, False),
    "capacity": (429, True),
    "env_error": (500, False),
    "env_crashed": (500, False),
    "internal": (500, False),
    "shutting_down": (503, True),
    "env_timeout": (504, False),
}
"""Code -> HTTP status, and whether the same request may succeed later."""


class ServiceError(Exception):
    """A refusal or failure that is reported to the caller.

    Attributes:
        code: One of `CODES`.
        message: One line without paths, tracebacks or hidden parts of tasks.
        retryable: Whether the same request may succeed later.
        status: HTTP status.
    """

    def __init__(self, code: str, message: str, *, status: int | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        default_status, default_retryable = CODES[code]
        self.code = code
        self.message = message
        self.status = default_status if status is None else status
        self.retryable = default_retryable if retryable is None else retryable

    def as_json(self) -> dict[str, Any]:
        """Return the body of the response."""
        error = {"code": self.code, "message": self.message, "retryable": self.retryable}
        return {"success": False, "error": error}


class NotActed(ServiceError):
    """A refusal before anything was done, so that the same request may be sent again."""


class EnvironmentFailed(Exception):
    """An exception of an environment, as reported by the process that it ran in.

    Attributes:
        kind: Name of the exception's class.
        trace: Traceback for the log.
    """

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


class RequestUnfit(Exception):
    """A request that an environment cannot carry out, such as a step after the end of the episode."""


class WorkerGone(Exception):
    """The process of an instance ended before it replied."""
