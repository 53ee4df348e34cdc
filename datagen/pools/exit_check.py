"""Fail the stage `pools` if its result is unusable: no trajectory, no text, or mostly unreadable verdicts.

Documented in docs/behaviour/exits.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.agent.jobs.runner import raise_no_output
from treadle.core.errors import StageFailed
from treadle.core.runs.address import Address

Row = Mapping[str, Any]


@dataclass(slots=True)
class PoolExitCheck:
    """Counters over the pools; `add` every question, then `check`."""

    questions: Counter[str] = field(default_factory=Counter)
    """Number of questions by status."""
    trajectories: Counter[str] = field(default_factory=Counter)
    """Number of trajectories by status."""
    num_with_text: int = 0
    num_judged: int = 0
    num_unreadable: int = 0
    first_cause: str = ""
    first_unreadable: str = ""

    def add(self, question: Row, pool: Sequence[Row]) -> None:
        """Count a question's row and its trajectories."""
        self.questions[question["status"]] += 1
        self.first_cause = self.first_cause or question["error"] or ""
        for row in pool:
            self.trajectories[row["status"]] += 1
            self.num_with_text += bool(row["text"])
            judge = orjson.loads(row["judge"])
            had_no_time = question["status"] == "timeout" and not judge["raw"]
            if judge["method"] != "model" or had_no_time:
                continue
            self.num_judged += 1
            if row["correct"] is None:
                self.num_unreadable += 1
                self.first_unreadable = self.first_unreadable or judge["error"] or ""

    def check(self, address: Address) -> None:
        """Raise StageFailed if there is no trajectory, if none has text, or if most verdicts of the judge failed."""
        if not self.trajectories:
            counts = ", ".join(f"{status} {count:,}" for status, count in self.questions.most_common())
            raise StageFailed(
                f"{address}: no trajectory was made from {self.questions.total():,} questions ({counts}); first cause: "
                f"{self.first_cause}; fix it, then run: treadle stage {address} --force"
            )
        if not self.num_with_text:
            raise_no_output(address, self.trajectories, "trajectories")
        if 2 * self.num_unreadable > self.num_judged:
            raise StageFailed(
                f"{address}: the judge gave no verdict on {self.num_unreadable:,} of {self.num_judged:,} trajectories; "
                f"first error: {self.first_unreadable}; set another model as pools.roles.judge in a new run, or "
                "count them as not correct with --accept-failures"
            )
