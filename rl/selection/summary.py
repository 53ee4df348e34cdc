"""Summarize a finished selection for terminal and UI."""

from __future__ import annotations

import re
from collections.abc import Mapping

from treadle.core.figures import Figures
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import phase_name
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.stages.report import Metrics, StageReport, group, ranked_counts

_SELECTED_GROUPS = re.compile(r"selected_(\w+)")
"""Name of the metric that counts the groups of a selection method with selected questions."""


def selection_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return a report with the number of selected questions, and with the reasons why others were not."""
    return StageReport(selection_sentences(record.metrics), selection_figures(record.metrics))


def selection_sentences(metrics: Metrics) -> list[str]:
    """Return a sentence with the numbers of selected questions, of all questions and of rollouts."""
    name = next((match[1] for match in map(_SELECTED_GROUPS.fullmatch, metrics) if match), None)
    groups = ""
    if name is not None:
        # Under quotas each domain has its own groups.
        first = "" if group(metrics, f"{name}.") else "the first "
        groups = f", from {first}{metrics[f'selected_{name}']:,} of {metrics[name]:,} {name}"
    return [
        f"{metrics['rows']:,} of {metrics['questions']:,} questions are selected{groups}; "
        f"{metrics['rollouts']:,} rollouts decided.",
    ]


def selection_figures(metrics: Metrics) -> list[Figures]:
    """Return tables of the reasons why questions were left out, and of those that earlier phases trained on."""
    left_out = {name.replace("_", " "): count for name, count in group(metrics, "left_out.").items()}
    overlap = group(metrics, "overlap.")
    phases = sorted({name.partition(".")[0] for name in overlap}, key=int)
    rows = []
    for phase in phases:
        outcomes = {name.partition(".")[2]: count for name, count in overlap.items() if name.startswith(f"{phase}.")}
        rest = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in outcomes.items() if n and name != "selected")
        rows.append((phase_name(int(phase)), sum(outcomes.values()), outcomes.get("selected", 0), rest or "-"))
    return [
        ranked_counts("Why questions were left out", "reason", "questions", left_out),
        Figures("Questions of earlier phases", ("phase", "questions", "selected again", "others"), tuple(rows)),
    ]
