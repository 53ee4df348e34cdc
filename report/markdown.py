"""Render the report as markdown that is also readable as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from treadle.core.figures import Figures, escape, render_table
from treadle.eval.averages import ALL, EVERY
from treadle.eval.config import ReportSettings
from treadle.eval.figures.attempts import OVER_ATTEMPTS, PASS_AT
from treadle.eval.metrics import notes_of
from treadle.report.layout import (
    COMPARISON,
    MIXED_NOTE,
    NUM_NAMES,
    SummaryLine,
    agreement_table,
    all_figures,
    attempts_table,
    behaviour_table,
    by_model,
    comparison_cells,
    count_table,
    datasets_of,
    headline_table,
    members,
    pass_at_k_table,
    shown_figures,
    summary_lines,
)

Row = Mapping[str, Any]

_HEADLINE_EXPLANATION = {
    "score": """\
- **accuracy**: share of rollouts judged right. A rollout that did not end with an answer is wrong.
- **P**: correctness, 1 or 0 for mathematics and options, token F1 with the best gold answer for knowledge.
""",
    "reward": """\
- **reward**: what the environment says of a rollout; failed ones have none.
- **accuracy** by rewards: share of successes, or of rewards above 0.5.
- **turns**: of the model, per rollout.
""",
    "accuracy": """\
- **[95 %]**: interval over questions. If two intervals overlap widely, the difference may be chance; the
  comparisons below pair the questions and are more sensitive.
""",
    "ended": """\
- **ended**: share of rollouts that ended with an answer, or, of rewards, with their task.
""",
    "efficiency": """\
- **efficiency**: P divided by requested tool calls (by 1 without calls), averaged; `-` where no tool was used.
""",
    "completion_tokens": """\
- **calls**, **tokens**: requested and sampled per rollout.
- Rollouts without a verdict (`unscored`) are left out of accuracy, P, reward and efficiency.
""",
}
"""Figure -> explanation that is shown if any line has the figure."""

_BEHAVIOUR_EXPLANATION = """\
- **success**: P divided by failed calls (by 1 without one); **strict**: by 1 plus failed calls.
- **ran well**: share of all executed calls that did not fail.
- **concise**: share of rollouts without a wasted call, by a judge's votes; **with calls**: of those that made calls;
  `open`: rollouts whose votes have no majority, left out. A rollout without calls counts as concise; `-`: no majority.
- **P/1000**: P per thousand tokens of reasoning; **L**: these tokens; **tool use**: share of rollouts with a call.
"""

_COMPARISON_EXPLANATION = """\
- **difference**: second minus first, on the same questions, with its 95 % interval.
- **p by Holm**: probability of a difference at least this large between equal models, adjusted for all comparisons of
  this report. From 0.05 on, the difference may be chance.
- **won, lost**: questions that only the second, or only the first, gets mostly right.
"""

_AGREEMENT_EXPLANATION = """\
- **judged by all**: answers on which all judges have a verdict. Answers that the rule accepts are not judged, so the
  easy ones, on which judges agree, are missing.
- **agreement**: share of pairs of verdicts that are the same; **kappa**: agreement beyond chance (1: full, 0: none).
"""


def render_report(
    rows: Sequence[Row], comparisons: Sequence[Row], settings: ReportSettings, groups: Sequence[Figures] = ()
) -> str:
    """Render the whole report from the rows of the summary and the comparisons, and tables by columns of questions."""
    given = summary_lines(rows)
    parts = [
        f"# {escape(settings.title)}",
        render_table(headline_table(given)),
        "".join(_HEADLINE_EXPLANATION[name] for name in shown_figures(_HEADLINE_EXPLANATION, given))
        + _averages(given, settings)
        + _without_end(given),
        *_passes(given),
        *_behaviour(given),
        *_comparisons(comparisons),
        *(part for table in groups for part in (f"## {escape(table.title)}", render_table(table))),
        "## All figures [95 %]",
        *_all_figures(given),
        "## How rollouts ended",
        render_table(count_table(given, "status")),
        "## Who decided",
        render_table(count_table(given, "scorer")),
        *_judged(given),
    ]
    return "\n\n".join(parts) + "\n"


def _behaviour(given: Sequence[SummaryLine]) -> Iterator[str]:
    """Yield the section on behaviour, which explains the figures of tools and answers."""
    yield "## Behaviour"
    yield render_table(behaviour_table(given))
    if shown_figures(["score"], given):
        yield _BEHAVIOUR_EXPLANATION.rstrip()
    else:
        yield "- **L**: tokens that the model wrote."


def _passes(given: Sequence[SummaryLine]) -> Iterator[str]:
    if (table := pass_at_k_table(given)).rows:
        yield "## pass@k"
        yield render_table(table)
        yield f"- **pass@k**: {OVER_ATTEMPTS[PASS_AT]}."
    if (table := attempts_table(given)).rows:
        yield "## Several attempts"
        yield render_table(table)
        kinds = {name.partition("@")[0] for name in table.header}
        told = [f"- **{kind}k**: {line}." for kind, line in OVER_ATTEMPTS.items() if kind.removesuffix("@") in kinds]
        yield "\n".join(told)


def _averages(given: Sequence[SummaryLine], settings: ReportSettings) -> str:
    """Return the explanation of the averages, with a note if they differ between models."""
    datasets = {line.dataset for line in given}
    chosen = sorted(datasets.intersection(settings.headline))
    over = f"the headline data sets ({', '.join(map(escape, chosen))})" if chosen else "the data sets"
    every = "; **every**: over all data sets" if EVERY in datasets else ""
    averaged = [frozenset(members(lines, ALL, settings.headline)) for lines in by_model(given).values() if ALL in lines]
    mixed = f"\n- {MIXED_NOTE}." if any(len(line.environments) > 1 for line in given) else ""
    unlike = (
        "\n- The averages cover different data sets, so they do not show which model is better."
        if len(set(averaged)) > 1
        else ""
    )
    return (
        f"- **all**: unweighted mean over {over}{every}.\n"
        "- **math**, **knowledge**: the same over math data sets, and over all others with answers. Counts are sums."
        f"{mixed}{unlike}"
    )


def _without_end(given: Sequence[SummaryLine]) -> str:
    """Return a remark on each model's data sets in which most rollouts have no answer; empty without any."""
    found = [
        f"\n- More than half of the rollouts of {escape(model)} on {escape(name)} did not end with an answer: the page "
        "of `treadle report` says how they ended, with examples and likely causes."
        for model, lines in by_model(given).items()
        for name in datasets_of(lines)
        if (ended := lines[name].value("ended")) is not None and ended < 0.5
    ]
    return "".join(found)


def _all_figures(given: Sequence[SummaryLine]) -> Iterator[str]:
    """Yield one table per data set and average, with models as columns."""
    for name in dict.fromkeys(line.dataset for line in given):
        table = all_figures(name, {line.model: line for line in given if line.dataset == name})
        yield f"### {escape(table.title)}"
        yield render_table(table)
    if notes := notes_of(dict.fromkeys(name for line in given for name in line.figures)):
        yield "\n".join(f"- **{title}**: {note}." for title, note in notes.items())


def _comparisons(comparisons: Sequence[Row]) -> Iterator[str]:
    if not comparisons:
        return
    yield "## Comparisons"
    for (first, second), group in groupby(comparisons, key=lambda row: (row["first"], row["second"])):
        rows = list(group)
        yield f"First {escape(first)}, second {escape(second)}:"
        yield render_table(Figures("", COMPARISON, tuple(map(comparison_cells, rows)), num_names=NUM_NAMES))
        for note in dict.fromkeys(row["note"] for row in rows if row["note"]):
            yield f"Not directly comparable: {escape(note)}."
    yield _COMPARISON_EXPLANATION.rstrip()


def _judged(given: Sequence[SummaryLine]) -> Iterator[str]:
    if not any(line.counts("judge_status") for line in given):
        yield "No judge was used: rules decided P." if shown_figures(["score"], given) else "No judge was used."
        return
    yield "Answers that judges were asked about, by result:"
    yield render_table(count_table(given, "judge_status"))
    if (table := agreement_table(given)).rows:
        yield "Agreement of the judges:"
        yield render_table(table)
        yield _AGREEMENT_EXPLANATION.rstrip()
