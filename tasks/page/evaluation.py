"""Build the headline section with its intervals, and the radar of behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from treadle.core.figures import Cell, Figures
from treadle.eval.averages import AVERAGES
from treadle.eval.metrics import FIGURES, figures_in
from treadle.report.layout import (
    MIXED_NOTE,
    SummaryLine,
    all_figures,
    figure_cell,
    figure_heading,
    has_environments,
    pass_names,
)
from treadle.report.page.charts import IntervalRow, interval_chart, radar_chart
from treadle.report.page.document import Fold, Part, Section, Tile, Tiles
from treadle.report.radar import AXES, radar_axes
from treadle.tasks.page.models import EvaluatedModel, enumerated

_HEADLINE = tuple(name for name in FIGURES if name in figures_in("headline") or name in {figure for _, figure in AXES})
"""Main figures of this section: those in the headline of text reports, and those that the radar draws."""
_PROBLEM_COUNTS = ("undecided", "failed")
_NOTE = (
    "Undecided: rollouts without a verdict, left out; open: without a majority of votes, left out of conciseness. "
    "Failed: ended by infrastructure, counted as wrong. Averages give each data set the same weight."
)
_ANSWERS_NOTE = "Correctness: F1 for questions of knowledge, else 1 or 0; efficiency: the same divided by calls."
_REWARDS_NOTE = (
    "Reward: what the environment says of a rollout, failed ones have none; right: a success, or a reward above 0.5; "
    "turns: of the model."
)
_DIFFERENT_DATASETS = "The models have figures of different data sets, so these do not show which model is better."
_WITH_INTERVAL = ("accuracy", "score", "reward", "efficiency")
_MAX_DATASETS_DRAWN = 12


def headline_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the section with the share of right answers, by model and data set."""
    if not models:
        return []
    figures = [
        name
        for name in (*_HEADLINE, *pass_names(line for model in models for line in _shown_lines(model)))
        if _is_shown(name, models)
    ]
    problem_counts = [
        name for name in _PROBLEM_COUNTS if any(_count(line, name) for model in models for line in _shown_lines(model))
    ]
    title, has_same_datasets = _over(models)
    is_mixed = any(len(model.headline.environments) > 1 for model in models)
    notes = ["In brackets: 95 % intervals."]
    notes += [_ANSWERS_NOTE] if any("score" in line.figures for model in models for line in _shown_lines(model)) else []
    notes += [_REWARDS_NOTE] if "reward" in figures else []
    notes.append(_NOTE)
    if not problem_counts:
        notes.append("Every rollout has a verdict, and none was ended by infrastructure.")
    if is_mixed:
        notes.append(f"{MIXED_NOTE}.")
    if not has_same_datasets:
        notes.append(_DIFFERENT_DATASETS)
    # Most figures have no value in an average over several environments.
    of_headline = figures if not is_mixed else [name for name in figures if any(_has(model, name) for model in models)]
    over_all = Figures(
        title,
        ("model", *([] if has_same_datasets else ["data sets"]), *_header(of_headline, problem_counts)),
        tuple(
            (
                model.label,
                *([] if has_same_datasets else [_members(model)]),
                *_cells(model.headline, of_headline, problem_counts),
            )
            for model in models
        ),
        " ".join(notes),
    )
    parts: list[Part] = [Tiles(tuple(map(_tile, models)))]
    lines = _shown_names(models)
    if estimates := _estimates(models, lines[:_MAX_DATASETS_DRAWN]):
        cut = f"Only the first {_MAX_DATASETS_DRAWN} of {len(lines)} averages and data sets are drawn."
        parts.append(interval_chart("Right answers", estimates, note=cut if len(lines) > _MAX_DATASETS_DRAWN else ""))
    parts.append(over_all)
    if len(lines) > 1:
        parts.append(Fold("Each data set", [_by_dataset(models, lines, figures, problem_counts)]))
    parts.append(Fold("All figures", _all_figures(models)))
    reading = (
        "Each line is a 95 % interval around the share of right answers: if two overlap widely, the difference may "
        "be chance."
    )
    return [Section("headline", "Headline", reading, parts)]


def _has(model: EvaluatedModel, name: str) -> bool:
    return model.headline.value(name) is not None


def _over(models: Sequence[EvaluatedModel]) -> tuple[str, bool]:
    """Return a title naming the data sets of the main figures, and whether all models have the same ones."""
    if len({tuple(model.over(model.headline.dataset)) for model in models}) > 1:
        return "Figures of different data sets", False
    title = models[0].title(models[0].headline.dataset)
    return (f"{title[0].upper()}{title[1:]}" if len(models[0].datasets) > 1 else "Figures"), True


def _members(model: EvaluatedModel) -> str:
    return enumerated(model.over(model.headline.dataset))


def radar_section(models: Sequence[EvaluatedModel]) -> list[Section]:
    """Return the radar of up to five behaviour figures; empty if fewer than three are known."""
    axes = radar_axes({model.label: _values(model.headline) for model in models})
    known = [axis for axis in axes if any(value is not None for value in axis.values.values())]
    if not models or len(known) < 3:
        return []
    rows: list[tuple[str, ...]] = [
        (
            axis.title,
            f"{axis.low:g} to {axis.high:g}",
            *("-" if value is None else f"{value:.3g}" for value in axis.values.values()),
        )
        for axis in axes
    ]
    lines = [model.headline for model in models]
    counts = {
        "rollouts without a verdict": [_count(line, "undecided") for line in lines],
        "rollouts without a majority of votes": [line.num_without_majority("conciseness") for line in lines],
        "rollouts that failed": [_count(line, "failed") for line in lines],
    }
    rows += [(name, "", *(f"{number:,}" for number in numbers)) for name, numbers in counts.items()]
    reading = (
        "Further out is better on every axis, but each axis has its own range, so compare models on one axis, not "
        "axes with each other."
    )
    unknown = ", ".join(axis.title for axis in axes if axis not in known)
    title, has_same_datasets = _over(models)
    notes = ["" if title == "Figures" else f"{title}.", "" if has_same_datasets else _DIFFERENT_DATASETS]
    notes.append(f"Not drawn, because no model has it: {unknown}." if unknown else "")
    note = " ".join(filter(None, notes))
    table = Figures("Values", ("axis", "range", *(model.label for model in models)), tuple(rows), note)
    return [Section("radar", "Radar", reading, [radar_chart("Behaviour", known), table])]


def _values(line: SummaryLine) -> Mapping[str, float | None]:
    return {name: line.value(name) for name in line.figures}


def _tile(model: EvaluatedModel) -> Tile:
    line = model.headline
    value = line.value("accuracy")
    interval = _interval(line, "accuracy")
    note = f"{line.num_questions:,} questions of {_members(model)}"
    if interval:
        note = f"{interval} · {note}"
    return Tile(model.label, "-" if value is None else f"{100 * value:.1f} %", note, model.series)


def _interval(line: SummaryLine, figure: str) -> str:
    row = line.figures.get(figure)
    if row is None or row["low"] is None or row["high"] is None:
        return ""
    return f"{100 * row['low']:.1f} to {100 * row['high']:.1f} %"


def _estimates(models: Sequence[EvaluatedModel], lines: Sequence[str]) -> list[IntervalRow]:
    """Return the chart's rows: averages, then data sets, each with a row per model; a single model has no groups."""
    found = []
    for name in lines:
        for model in models:
            title = model.title(name)
            row = model.lines[name].figures.get("accuracy") if name in model.lines else None
            if row is None or row["value"] is None or row["low"] is None or row["high"] is None:
                continue
            group, label = (title, model.label) if len(models) > 1 and len(lines) > 1 else ("", model.label)
            if len(models) == 1 and len(lines) > 1:
                label = title
            found.append(IntervalRow(group, label, model.series, row["value"], row["low"], row["high"]))
    return found


def _shown_names(models: Sequence[EvaluatedModel]) -> list[str]:
    """Return the names of averages, then data sets, without averages over a single data set, which would repeat it."""
    names = dict.fromkeys(name for model in models for name in model.lines)
    averages = [
        average
        for average in AVERAGES
        if any(average in model.lines and len(model.over(average)) != 1 for model in models)
    ]
    return [*averages, *(name for name in names if any(name in model.datasets for model in models))]


def _is_shown(name: str, models: Sequence[EvaluatedModel]) -> bool:
    """Return whether a column has values, and, for `score`, values that differ from `accuracy`."""
    lines = [line for model in models for line in _shown_lines(model)]
    if name == "score" and all(line.value(name) == line.value("accuracy") for line in lines):
        return False
    return any(line.value(name) is not None for line in lines)


def _header(figures: Sequence[str], problem_counts: Sequence[str]) -> list[str]:
    """Return the headings of `_cells`."""
    return ["rollouts", *(figure_heading(name, in_percent=True) for name in figures), *problem_counts]


def _cells(line: SummaryLine, figures: Sequence[str], problem_counts: Sequence[str]) -> list[Cell]:
    return [
        line.num_rollouts,
        *(figure_cell(line, name, in_percent=True, with_interval=name in _WITH_INTERVAL) for name in figures),
        *(_count(line, name) for name in problem_counts),
    ]


def _shown_lines(model: EvaluatedModel) -> list[SummaryLine]:
    return [model.headline, *(model.lines[name] for name in model.datasets)]


def _count(line: SummaryLine, name: str) -> int:
    """Return the number of undecided or failed rollouts."""
    if name == "undecided":
        return line.num_undecided
    return int(line.value("num_failed") or 0)


def _by_dataset(
    models: Sequence[EvaluatedModel], datasets: Sequence[str], figures: Sequence[str], problem_counts: Sequence[str]
) -> Figures:
    named = has_environments(line for model in models for line in model.lines.values())
    rows = tuple(
        (
            model.title(name),
            *([", ".join(model.lines[name].environments)] if named else []),
            model.label,
            *_cells(model.lines[name], figures, problem_counts),
        )
        for name in datasets
        for model in models
        if name in model.lines
    )
    header = ("data set", *(["environment"] if named else []), "model", *_header(figures, problem_counts))
    return Figures("Each data set", header, rows, num_names=1 + named)


def _all_figures(models: Sequence[EvaluatedModel]) -> list[Part]:
    """Return a table of the main figures, and one per data set and further average; models are columns."""
    title, has_same_datasets = _over(models)
    main = all_figures(
        "All figures [95 %]" if title == "Figures" else f"All figures: {title[0].lower()}{title[1:]} [95 %]",
        {model.label: model.headline for model in models},
        in_percent=True,
    )
    if not has_same_datasets:
        main = replace(main, rows=(("data sets", *map(_members, models)), *main.rows))
    parts: list[Part] = [main]
    for name in _shown_names(models):
        lines = {model.label: model.lines[name] for model in models if name in model.lines}
        if has_same_datasets and all(
            line is model.headline for model, line in zip(models, lines.values(), strict=False)
        ):
            continue
        parts.append(all_figures(f"{_title_of(models, name)} [95 %]", lines, in_percent=True))
    return parts


def _title_of(models: Sequence[EvaluatedModel], name: str) -> str:
    """Return the title of a data set or average; if models average different data sets, join all titles."""
    return " or ".join(dict.fromkeys(model.title(name) for model in models if name in model.lines))
