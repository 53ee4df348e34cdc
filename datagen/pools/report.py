"""Report the stage `pools`: outcomes of questions, yield of operators, calls before and after, usage by role.

Counts are updated row by row, so memory does not grow with the number of questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.figures import Figures, money, render_figures
from treadle.datagen.pools.events import INITIAL
from treadle.datagen.pools.rows import tokens_of, total_usage
from treadle.environments.rollouts.report import unreadable_output_warnings

Row = Mapping[str, Any]

_COLUMNS = ("tried", "produced", "duplicate", "rejected", "failed", "right", "corrected")
_TITLES = {"corrected": "wrong to right", "duplicate": "repeats", "produced": "made"}
_YIELD_NOTE = (
    "wrong to right: right trajectories made from a wrong parent; calls: means over trajectories made from a parent, "
    "for the parent and for the new trajectory"
)


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
    """Counters over questions; `add` each, then read `metrics` or `markdown`."""

    applied: Collection[str]
    """Names of the operators; other names in events are findings that several operators share."""
    statuses: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    operators: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    calls_initial: _Mean = field(default_factory=_Mean)
    calls_correct: _Mean = field(default_factory=_Mean)

    def add(self, question: Row, pool: Sequence[Row], events: Sequence[Row]) -> None:
        """Count one question: its row, its trajectories and its events."""
        self.statuses[question["status"]] += 1
        self.counts["trajectories"] += len(pool)
        self.counts["correct"] += question["num_correct"]
        self.counts["unknown_verdicts"] += sum(row["correct"] is None for row in pool)
        self.counts["questions_correct_initially"] += question["initial_correct"]
        self.counts["questions_correct_finally"] += question["num_correct"] > 0
        self.usage = total_usage([self.usage, orjson.loads(question["usage"])])
        by_key = {row["rollout_key"]: row for row in pool}
        for row in pool:
            self.counts["answered"] += row["status"] == "answered"
            self.counts["calls"] += row["calls_requested"]
            if row["operator"] == INITIAL:
                self._count_attempt(INITIAL, "produced", row, None)
                self.calls_initial.add(row["calls_requested"])
            if row["correct"]:
                self.calls_correct.add(row["calls_requested"])
        for event in events:
            made = by_key.get(event["rollout_key"]) if event["outcome"] == "produced" else None
            self._count_attempt(event["operator"], event["outcome"], made, by_key.get(event["parent"]))
        self._count_reasons(events)

    def _count_reasons(self, events: Sequence[Row]) -> None:
        """Count the reasons of events without a result.

        The reason of a finding is not counted again for the operators that need it.
        """
        found: set[tuple[Any, ...]] = set()
        for event in events:
            cause = tuple(event[name] for name in ("round", "parent", "reason", "reply", "error"))
            if not event["reason"] or cause in found:
                continue
            if event["operator"] not in (INITIAL, *self.applied):
                found.add(cause)
            self.reasons[f"{event['operator']}.{event['reason']}"] += 1

    def _count_attempt(self, operator: str, outcome: str, made: Row | None, parent: Row | None) -> None:
        counts = self.operators.setdefault(operator, Counter())
        counts["tried"] += 1
        counts[outcome] += 1
        if made is None:
            return
        counts["right"] += made["correct"] is True
        if parent is not None:
            counts["corrected"] += made["correct"] is True and parent["correct"] is not True
            counts["calls_before"] += parent["calls_requested"]
            counts["calls_after"] += made["calls_requested"]

    def metrics(self) -> dict[str, Any]:
        """Return the counts for the stage's record."""
        num_questions = self.statuses.total()
        correct = self.counts["correct"]
        return {
            "num_questions": num_questions,
            **{f"status_{name}": self.statuses[name] for name in sorted(self.statuses)},
            **{f"num_{name}": self.counts[name] for name in sorted(self.counts)},
            "calls_initial": self.calls_initial.value,
            "calls_correct": self.calls_correct.value,
            "tokens_per_correct": tokens_of(self.usage) / correct if correct else 0.0,
            "operators": {name: dict(self.operators[name]) for name in sorted(self.operators)},
            "reasons": dict(sorted(self.reasons.items())),
            "usage": self.usage,
        }

    def markdown(self) -> str:
        """Return the report as Markdown."""
        metrics = self.metrics()
        cost = f"Tokens per right trajectory: {metrics['tokens_per_correct']:,.0f}."
        parts = ["# Pools", *pool_sentences(metrics), cost, render_figures(pool_figures(metrics))]
        return "\n\n".join(part for part in parts if part) + "\n"


def pool_sentences(metrics: Mapping[str, Any]) -> list[str]:
    """Return sentences that summarise the pools, from the metrics of the stage's record."""
    unknown = metrics["num_unknown_verdicts"]
    return [
        *pool_warnings(metrics),
        f"{metrics['num_questions']:,} questions: {metrics['num_questions_correct_initially']:,} right initially, "
        f"{metrics['num_questions_correct_finally']:,} at the end. {metrics['num_trajectories']:,} trajectories, "
        f"{metrics['num_correct']:,} right" + (f", {unknown:,} without a verdict." if unknown else "."),
        f"Tool calls per trajectory: {metrics['calls_initial']:.2f} in initial rollouts, "
        f"{metrics['calls_correct']:.2f} "
        "in right ones.",
    ]


def pool_warnings(metrics: Mapping[str, Any]) -> list[str]:
    """Return a warning with possible causes if no trajectory has an answer, or not even a call; else an empty list."""
    num_calls = metrics.get("num_calls")
    if num_calls is None:  # imported pools have no counts
        return []
    counts = {
        "num_rollouts": metrics["num_trajectories"],
        "calls_requested": num_calls,
        "status_answered": metrics["num_answered"],
    }
    return unreadable_output_warnings(counts, "trajectories")


def pool_figures(
    metrics: Mapping[str, Any],
    accepted: Mapping[str, int] | None = None,
    costs: Mapping[str, float | None] | None = None,
) -> list[Figures]:
    """Return the tables of the report, from the metrics of the stage's record.

    `accepted`: number of trajectories that passed the quality gate, by operator, once it was applied. `costs`: cost by
    role; None for a role whose model has no price.
    """
    statuses = {name.removeprefix("status_"): count for name, count in metrics.items() if name.startswith("status_")}
    ranked = sorted(metrics["reasons"].items(), key=lambda item: (-item[1], item[0]))
    reasons = [(*name.partition(".")[::2], count) for name, count in ranked]
    return [
        Figures("Questions", ("outcome", "questions"), tuple((name, statuses[name]) for name in sorted(statuses))),
        _yield(metrics["operators"], accepted),
        Figures("Why operators produced nothing", ("operator", "reason", "times"), tuple(reasons)),
        usage_figures(metrics["usage"], costs),
    ]


def _yield(operators: Mapping[str, Mapping[str, int]], accepted: Mapping[str, int] | None) -> Figures:
    """Return the table of what each operator tried and made; findings, which give no trajectory, come last."""
    names = sorted(operators, key=lambda name: (name != INITIAL, "found" in operators[name], name))
    rows = []
    for name in names:
        counts = operators[name]
        cells: list[str | int] = [counts.get(column, 0) for column in _COLUMNS]
        cells[1] = counts.get("produced", 0) + counts.get("found", 0)
        if name == INITIAL:
            cells[-1] = "-"
        if "found" in counts:
            cells[2] = cells[5] = cells[6] = "-"
        gated: list[str | int] = [] if accepted is None else ["-" if "found" in counts else accepted.get(name, 0)]
        edits = counts.get("produced", 0) if "calls_before" in counts else 0
        calls = [f"{counts[side] / edits:.2f}" if edits else "-" for side in ("calls_before", "calls_after")]
        rows.append((name, *cells, *gated, *calls))
    titles = [_TITLES.get(column, column) for column in _COLUMNS]
    header = ("operator", *titles, *([] if accepted is None else ["accepted"]), "calls before", "after")
    return Figures("Yield of operators", header, tuple(rows), _YIELD_NOTE)


def usage_figures(usage: Mapping[str, Mapping[str, int]], costs: Mapping[str, float | None] | None = None) -> Figures:
    """Return the table of requests, tokens and, if prices are known, costs by role."""
    names = ("calls", "prompt_tokens", "completion_tokens")
    rows: list[tuple[str | int, ...]] = [(role, *(used[name] for name in names)) for role, used in usage.items()]
    rows += [("all", *(sum(used[name] for used in usage.values()) for name in names))] if len(rows) > 1 else []
    header: tuple[str, ...] = ("role", "requests", "prompt tokens", "sampled tokens")
    if costs and any(cost is not None for cost in costs.values()):
        header = (*header, "cost")
        by_role = {**costs, "all": sum(cost or 0.0 for cost in costs.values())}
        rows = [(*row, "?" if (cost := by_role.get(str(row[0]))) is None else money(cost)) for row in rows]
    return Figures("Requests and tokens", header, tuple(rows))
