"""Record the outcomes of operators and findings, and raise the errors that are not an operator's own failures."""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.agent.jobs.runner import cause_of, leaves_job_pending
from treadle.core.errors import ModelError, TreadleError
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.pools.pool import PoolEntry
from treadle.datagen.pools.role_usage import RoleUsage

INITIAL = "initial"
"""Operator name of initial rollouts."""


@dataclass(slots=True)
class PoolEvent:
    """Outcome of an operator or a finding; for an initial rollout only if it gave no trajectory."""

    round: int
    operator: str
    parent: PoolEntry | None
    """The expanded trajectory; None for initial rollouts."""
    outcome: str
    reason: str = ""
    reply: str = ""
    error: str | None = None
    rollout_key: str | None = None
    usage: dict[str, RoleUsage] = field(default_factory=dict)

    def record(self, error: BaseException) -> None:
        """Set outcome, reason and cause from an error; for a rejected edit, the model's reply instead of a cause."""
        if isinstance(error, EditRejected):
            self.outcome, self.reason, self.reply = "rejected", error.reason, error.reply
        else:
            plain = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
            self.outcome, self.reason, self.error = "failed", _code(error), cause_of(plain)


def raise_if_fatal(error: BaseException, *, final: bool) -> None:
    """Raise an error that is not the operator's own failure: it leaves the question pending, or stops the stage.

    With `final`, errors that would leave the question pending count as the operator's failures and are not raised.
    """
    if not isinstance(error, Exception):
        raise error
    if isinstance(error, EditRejected):
        return
    if isinstance(error, TreadleError) and not (final and leaves_job_pending(error)):
        raise error


def _code(error: BaseException) -> str:
    """Return the reason code of a failure."""
    if isinstance(error, ModelError):
        return "llm_failed"
    return "tool_failed" if isinstance(error, TreadleError) else "operator_error"
