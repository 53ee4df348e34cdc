"""What the flywheel achieved: outcomes of questions, yield of operators, calls before and after, cost by role.

Counted row by row, so that memory does not grow with the questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.datagen.evolution import INITIAL
from treadle.datagen.pool_rows import total_usage

Row = Mapping[str, Any]


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class PoolReport:
    """Sums over questions; `add` one after the other, then read `metrics` or `markdown`."""

    statuses: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    operators: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    calls_initial: _Mean = field(default_factory=_Mean)
    calls_right: _Mean = field(default_factory=_Mean)

    def add(self, question: Row, pool: Sequence[Row], events: Sequence[Row]) -> None:
        """Count one question: its row, its trajectories, its events."""
        self.statuses[question["status"]] += 1
        self.counts["trajectories"] += len(pool)
        self.counts["correct"] += question["num_correct"]
        self.counts["unknown_verdicts"] += sum(row["correct"] is None for row in pool)
        self.counts["questions_right_at_first"] += question["initial_correct"]
        self.counts["questions_right_at_last"] += question["num_correct"] > 0
        self.usage = total_usage([self.usage, orjson.loads(question["usage"])])
        by_key = {row["rollout_key"]: row for row in pool}
        for row in pool:
            if row["operator"] == INITIAL:
                self._tried(INITIAL, "produced", row, parent_correct=True)
                self.calls_initial.add(row["calls_requested"])
            if row["correct"]:
                self.calls_right.add(row["calls_requested"])
        for event in events:
            made = by_key.get(event["rollout_key"]) if event["outcome"] == "produced" else None
            self._tried(event["operator"], event["outcome"], made, parent_correct=event["parent_correct"])
            if event["reason"]:
                self.reasons[f"{event['operator']}.{event['reason']}"] += 1

    def _tried(self, operator: str, outcome: str, made: Row | None, *, parent_correct: bool) -> None:
        counts = self.operators.setdefault(operator, Counter())
        counts["tried"] += 1
        counts[outcome] += 1
        if made is not None and made["correct"]:
            counts["right"] += 1
            counts["turned_right"] += not parent_correct

    def metrics(self) -> dict[str, Any]:
        """Counts for the stage's record."""
        num_questions = self.statuses.total()
        tokens = sum(role["prompt_tokens"] + role["completion_tokens"] for role in self.usage.values())
        correct = self.counts["correct"]
        return {
            "num_questions": num_questions,
            **{f"status_{name}": self.statuses[name] for name in sorted(self.statuses)},
            **{f"num_{name}": self.counts[name] for name in sorted(self.counts)},
            "calls_initial": self.calls_initial.value,
            "calls_right": self.calls_right.value,
            "tokens_per_correct": tokens / correct if correct else 0.0,
            "operators": {name: dict(self.operators[name]) for name in sorted(self.operators)},
            "reasons": dict(sorted(self.reasons.items())),
            "usage": self.usage,
        }

    def markdown(self) -> str:
        """Tables for people."""
        metrics = self.metrics()
        outcomes = [[name, self.statuses[name]] for name in sorted(self.statuses)]
        columns = ("tried", "produced", "duplicate", "rejected", "failed", "right", "turned_right")
        operators = [[name, *(self.operators[name][column] for column in columns)] for name in sorted(self.operators)]
        roles = [[name, *usage.values()] for name, usage in self.usage.items()]
        parts = [
            "# Pools",
            f"{metrics['num_questions']:,} questions, {self.counts['trajectories']:,} trajectories, "
            f"{self.counts['correct']:,} right. Right at first: {self.counts['questions_right_at_first']:,} questions; "
            f"at last: {self.counts['questions_right_at_last']:,}.",
            f"Calls per trajectory: {self.calls_initial.value:.2f} initial, {self.calls_right.value:.2f} among the "
            f"right ones. Tokens per right trajectory: {metrics['tokens_per_correct']:,.0f}.",
            _table(("status", "questions"), outcomes),
            _table(("operator", *(column.replace("_", " ") for column in columns)), operators),
            _table(("rejected or failed", "times"), [[name, count] for name, count in sorted(self.reasons.items())]),
            _table(("role", "calls", "prompt tokens", "sampled tokens"), roles),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else str(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]) if lines else ""
