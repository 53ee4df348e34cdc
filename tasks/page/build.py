"""Build the report page of one run, or of several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from treadle.core.runs.run import Run
from treadle.report.page.document import Page, Section, render_page
from treadle.report.page.inline_svg import SERIES
from treadle.tasks.page.behaviour import behaviour_section, endings_section
from treadle.tasks.page.comparisons import comparisons_section
from treadle.tasks.page.cost import cost_section
from treadle.tasks.page.evaluation import headline_section, radar_section
from treadle.tasks.page.groups import groups_section
from treadle.tasks.page.latency import latency_section
from treadle.tasks.page.manifest import manifest_section
from treadle.tasks.page.models import EvaluatedModel, evaluated_models
from treadle.tasks.page.problems import problems_section
from treadle.tasks.page.sources import PageRun
from treadle.tasks.page.training import training_sections
from treadle.tasks.page.verdict_sources import decided_section

FurtherSection = Callable[[Sequence[EvaluatedModel]], tuple[list[Section], list[str]]]
"""Builder of a section that only some pages have: returns it, or notes on why it is missing."""


def report_page(runs: Sequence[Run], further: FurtherSection | None = None) -> bytes:
    """Return the page as an HTML file, deterministic for the same runs. Sections without data are left out."""
    sources = [PageRun(run, label) for run, label in zip(runs, _labels(runs), strict=True)]
    models = evaluated_models(sources)
    more, missing = further(models) if further is not None and models else ([], [])
    sections = [
        *headline_section(models),
        *problems_section(sources),
        *comparisons_section(models),
        *groups_section(models),
        *radar_section(models),
        *more,
        *behaviour_section(models),
        *latency_section(models),
        *endings_section(models),
        *decided_section(models),
        *training_sections(sources),
        *cost_section(sources),
        *manifest_section(sources),
    ]
    notes = [*missing, *(note for source in sources for note in source.notes())]
    notes += dict.fromkeys(note for model in models for note in model.imported_notes())
    if not models and not notes:
        notes = ["Nothing was evaluated yet, so there are no figures of models."]
    if len(models) > len(SERIES):
        notes.append(f"There are {len(SERIES)} colours for {len(models)} models, so colours repeat.")
    title = " and ".join(dict.fromkeys(run.run_id for run in runs))
    return render_page(Page(title, _facts(runs, models), sections, notes))


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return a label per run: empty for a single run, else its name, numbered if runs of several roots share it."""
    if len(runs) == 1:
        return [""]
    names = Counter(run.run_id for run in runs)
    return [run.run_id if names[run.run_id] == 1 else f"{run.run_id} ({number})" for number, run in enumerate(runs, 1)]


def _environments(models: Sequence[EvaluatedModel]) -> list[tuple[str, str]]:
    names = sorted({name for model in models for line in model.lines.values() for name in line.environments})
    return [("Environments", ", ".join(names))] if len(names) > 1 else []


def _facts(runs: Sequence[Run], models: Sequence[EvaluatedModel]) -> list[tuple[str, str]]:
    datasets = list(dict.fromkeys(name for model in models for name in model.datasets))
    facts = [
        ("Runs" if len(runs) > 1 else "Run", ", ".join(run.run_id for run in runs)),
        ("Created", ", ".join(dict.fromkeys(run.info.created_at[:10] for run in runs))),
    ]
    if models:
        facts += [
            ("Models", ", ".join(model.label for model in models)),
            ("Data sets", ", ".join(datasets)),
            *_environments(models),
            ("Rollouts", f"{sum(model.num_rollouts for model in models):,}"),
        ]
    return [*facts, ("Treadle", ", ".join(dict.fromkeys(run.info.treadle_version for run in runs)))]
