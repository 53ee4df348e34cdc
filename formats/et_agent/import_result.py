"""Count the rows and trajectories of a file to import, and list its rejected rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.datagen.questions.layouts import RowRejected
from treadle.formats.et_agent.records import RejectedRow

_MAX_REPORTED = 10_000


_COUNTS = ("num_rows", "num_trajectories", "num_other_prompts", "num_selected")


@dataclass(slots=True)
class ImportResult:
    """Result of reading a file to import."""

    num_rows: int = 0
    """Number of accepted rows."""
    num_trajectories: int = 0
    num_other_prompts: int = 0
    """Number of rows whose agent had another system message than this run's."""
    num_selected: int = 0
    """Number of questions that the stage itself would use; those without a row are missing in the result."""
    rejected_rows: list[RejectedRow] = field(default_factory=list)
    """Rejected rows, at most the first 10,000."""
    reasons: Counter[str] = field(default_factory=Counter)

    def reject(self, number: int, error: RowRejected) -> None:
        """Count a rejected row."""
        self.reasons[error.reason] += 1
        if len(self.rejected_rows) < _MAX_REPORTED:
            self.rejected_rows.append(RejectedRow(number, error.reason, str(error)))

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "left_out": dict(sorted(self.reasons.items())),
            "rejected": [
                {"line": one.number, "reason": one.reason, "detail": one.detail[:300]} for one in self.rejected_rows
            ],
        }


def no_usable_rows(path: Path, found: ImportResult) -> str:
    """Return the message of the error that no row can be imported, with the first reason."""
    first = found.rejected_rows[0] if found.rejected_rows else None
    why = f"; row {first.number}: {first.detail}" if first is not None else ""
    return f"none of the {found.reasons.total():,} rows of {path} can be imported{why}"
