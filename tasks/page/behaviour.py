"""Build the sections on tool calls, lengths and endings of rollouts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from treadle.core.figures import Cell, Figures
from treadle.environments.diagnosis.facts import ENDED
from treadle.environments.scorers.scoring import ANSWERED
from treadle.eval.tool_names import CommonTools
from treadle.report.page.charts import Spread, calls_chart, endings_chart, spread_chart
from treadle.report.page.document import Part, Section
from treadle.tasks.page.models import EvaluatedModel

_MAX_CALLS_DRAWN = 8
"""Rollouts with more calls are drawn as having this many."""


def behaviour_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section on calls and lengths."""
    known = [model for model in models if model.rollouts]
    if not known:
        return []
    parts: list[Part] = []
    most = max(rollout.calls_requested for model in known for rollout in model.rollouts)
    if most:
        last = min(most, _MAX_CALLS_DRAWN)
        shares = {(model.label, model.series): _call_shares(model, last) for model in known}
        parts.append(calls_chart("Calls in a rollout", shares, is_last_open_ended=most > last))
    spreads = [Spread.of(model.label, model.series, tokens) for model in known if (tokens := _sampled_tokens(model))]
    if spreads:
        parts.append(spread_chart("Sampled tokens of a rollout", "tokens", spreads))
    parts.append(_calls_and_lengths(known))
    if (by_tool := _calls_by_tool(known)).rows:
        parts.append(by_tool)
    reading = (
        "a box holds the middle half of the rollouts, its line the median, the thin line all but the shortest and the "
        "longest twentieth."
    )
    has_calls = any(_has(model, "calls_requested") for model in known)
    bars = "Bars show how many rollouts made so many calls; " if has_calls else ""
    title = "Calls and lengths" if has_calls else "Turns and lengths"
    return [Section("behaviour", title, bars + reading if bars else reading.capitalize(), parts)]


def _sampled_tokens(model: EvaluatedModel) -> list[int]:
    """Return the sampled tokens of the model's rollouts whose tokens are known."""
    return [rollout.completion_tokens for rollout in model.rollouts if rollout.has_known_tokens]


def _spread_cells(tokens: Sequence[int]) -> tuple[str, str, str]:
    """Return mean, median and maximum of the tokens, as cells."""
    if not tokens:
        return "-", "-", "-"
    return f"{sum(tokens) / len(tokens):,.0f}", f"{statistics.median(tokens):,.0f}", f"{max(tokens):,}"


def _call_shares(model: EvaluatedModel, last: int) -> list[float]:
    counts = Counter(min(rollout.calls_requested, last) for rollout in model.rollouts)
    return [counts[calls] / len(model.rollouts) for calls in range(last + 1)]


def _sum(model: EvaluatedModel, name: str) -> int:
    """Return the sum of a count of `ScoredRollout` over the model's rollouts."""
    return sum(getattr(rollout, name) for rollout in model.rollouts)


_MEANS = {"calls": "calls_requested", "turns": "num_turns"}
"""Column heading -> count of a rollout; the column is shown if a model's report has a figure of the count's name."""


def _calls_and_lengths(models: Sequence[EvaluatedModel]) -> Figures:
    means = {name: column for name, column in _MEANS.items() if any(_has(model, column) for model in models)}
    has_calls = "calls" in means
    rows: list[tuple[Cell, ...]] = []
    for model in models:
        num_executed, num_failed = (_sum(model, name) for name in ("calls_executed", "failed_calls"))
        reasoning = [one for rollout in model.rollouts if (one := rollout.reasoning_tokens) is not None]
        rows.append(
            (
                model.label,
                len(model.rollouts),
                *(_mean(model, column) for column in means.values()),
                *((f"{num_failed / num_executed:.1%}" if num_executed else "-",) if has_calls else ()),
                *_spread_cells(_sampled_tokens(model)),
                f"{sum(reasoning) / len(reasoning):,.0f}" if reasoning else "-",
            )
        )
    header = (
        "model", "rollouts", *means, *(("failed",) if has_calls else ()), "sampled tokens", "median", "most",
        "tokens without results",
    )  # fmt: skip
    note = "Calls: means per rollout of what was asked for. Failed: share of the calls that ran and gave an error, "
    note = f"{note}nothing, or ran out of time." if has_calls else ""
    return Figures("Means over rollouts", header, tuple(rows), note)


def _calls_by_tool(models: Sequence[EvaluatedModel]) -> Figures:
    """Return a row for each model and tool, the tools that all models together call most first."""
    common = CommonTools.of(rollout for model in models for rollout in model.rollouts)
    rows: list[tuple[Cell, ...]] = []
    for model in models:
        rollouts = [common.apply(rollout) for rollout in model.rollouts]
        for tool in common.names:
            calls = [rollout.calls_of(tool) for rollout in rollouts]
            requested, executed, failed = (sum(values) for values in zip(*(one[1:] for one in calls), strict=True))
            used = sum(one.requested > 0 for one in calls)
            rows.append(
                (
                    model.label,
                    tool,
                    f"{requested / len(rollouts):.2f}",
                    f"{used / len(rollouts):.1%}",
                    requested - executed,
                    f"{failed / executed:.1%}" if executed else "-",
                )
            )
    header = ("model", "tool", "calls per rollout", "rollouts with it", "not run", "failed")
    note = "Not run: refused calls. Failed: share of the calls that ran."
    return Figures("Calls by tool", header, tuple(rows), note, num_names=2)


def _has(model: EvaluatedModel, column: str) -> bool:
    return any(column in line.figures for line in model.lines.values())


def _mean(model: EvaluatedModel, column: str) -> str:
    return f"{_sum(model, column) / len(model.rollouts):.2f}" if _has(model, column) else "-"


def endings_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section on how rollouts ended."""
    known = [model for model in models if model.rollouts]
    if not known:
        return []
    by_model = {model.label: Counter(rollout.status for rollout in model.rollouts) for model in known}
    totals: Counter[str] = sum(by_model.values(), Counter())
    first = [status for status in ENDED if totals[status]] or [ANSWERED]
    rest = sorted(totals.keys() - set(first), key=lambda status: (-totals[status], status))
    statuses = [*first, *rest]
    chart = endings_chart("How rollouts ended", by_model, statuses)
    table = Figures(
        "Rollouts by how they ended",
        ("model", *statuses),
        tuple((label, *(counts[status] for status in statuses)) for label, counts in by_model.items()),
        "answered: with an answer; finished: by the environment; no_answer, limit, max_turns, context_full, length, "
        "timeout, budget: stopped before that; failed: infrastructure, accepted by the user.",
    )
    reading = (
        "Only the first colour is rollouts with an answer; everything else counts as wrong."
        if first == [ANSWERED]
        else f"Rollouts that ended with their task come first: {' and '.join(first)}."
    )
    return [Section("endings", "How rollouts ended", reading, [chart, table])]
