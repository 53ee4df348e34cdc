"""Split the rollouts of a data set by columns of its questions, such as level or topic, and by their length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from treadle.core.figures import Figures
from treadle.core.runs.stage import Rows
from treadle.core.untrusted.sanitize import one_line
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import by_dataset, sums_of
from treadle.eval.figures.response_lengths import BUCKET_NAMES, by_length
from treadle.eval.metrics import heading_of, is_share
from treadle.eval.scored_rollout import ScoredRollout
from treadle.report.layout import figure_text
from treadle.report.summary import figure_interval, interval_columns

MOST_GROUPS = 30
"""Maximum number of different values of a column that splits a data set; it excludes columns such as ids and dates."""
NO_VALUE = "(none)"
"""Group of the questions of a data set that have no value in a column in which other questions have one."""
_FIGURES = ("accuracy", "score", "reward", "num_turns", "calls_requested", "completion_tokens")
_MOST_CHARS = 60
_QUESTION = ("question_key", "dataset", "meta")

Groups = Mapping[str, Mapping[str, str]]
"""Question key -> column -> value."""


def question_groups(tables: Iterable[Rows], columns: Sequence[str]) -> Groups:
    """Return the values of these columns for each question that has any.

    A column name with dots, such as `info.type`, names a key inside an object.
    """
    paths = [(column, column.split(".")) for column in columns]
    found: dict[str, dict[str, str]] = {}
    for table in tables:
        for row in table.rows(_QUESTION):
            if row["meta"] == "{}" or row["question_key"] in found:
                continue
            meta = orjson.loads(row["meta"])
            values = {column: _text(_at(meta, path)) for column, path in paths}
            if known := {column: text for column, text in values.items() if text}:
                found[row["question_key"]] = known
    return found


def group_rows(
    model: str, rollouts: Sequence[ScoredRollout], groups: Groups, settings: ReportSettings
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table `groups` of one model: by data set, column, value and figure.

    A column splits a data set if its questions have between 2 and 30 different values. The splits by length follow.
    """
    for dataset, ours in by_dataset(rollouts).items():
        for column, parts in _split(ours, groups, settings.group_by).items():
            for value in sorted(parts, key=_order):
                yield from _rows(model, dataset, column, value, parts[value], settings)
        for split, parts in by_length(ours).items():
            for name, part in parts.items():
                yield from _rows(model, dataset, split, name, part, settings)


def _split(
    rollouts: Sequence[ScoredRollout], groups: Groups, columns: Sequence[str]
) -> dict[str, dict[str, list[ScoredRollout]]]:
    """Return column -> value -> rollouts; of columns with equal values only the first is used."""
    found: dict[str, dict[str, list[ScoredRollout]]] = {}
    for column in columns:
        parts: dict[str, list[ScoredRollout]] = {}
        for rollout in rollouts:
            value = groups.get(rollout.question_key, {}).get(column, NO_VALUE)
            parts.setdefault(value, []).append(rollout)
        if 2 <= len(parts) <= MOST_GROUPS and parts.keys() != {NO_VALUE} and parts not in found.values():
            found[column] = parts
    return found


def _rows(
    model: str,
    dataset: str,
    column: str,
    value: str,
    rollouts: Sequence[ScoredRollout],
    settings: ReportSettings,
) -> Iterator[dict[str, Any]]:
    size = {"num_questions": len({one.question_key for one in rollouts}), "num_rollouts": len(rollouts)}
    unfit = "score" if any(one.is_reward for one in rollouts) else "reward"
    for name in (name for name in _FIGURES if name != unfit):
        sums = sums_of(rollouts, name)
        interval = interval_columns(figure_interval(sums, name, settings))
        place = {"model": model, "dataset": dataset, "column": column, "group": value, "figure": name}
        yield {**place, **interval, **size, "num_undecided": sums.num_undecided}


def group_tables(rows: Iterable[Mapping[str, Any]], *, in_percent: bool = False) -> list[Figures]:
    """Return a table per data set and column with a line per model and value."""
    tables: dict[tuple[str, str], dict[tuple[str, str], dict[str, Mapping[str, Any]]]] = {}
    for row in rows:
        lines = tables.setdefault((row["dataset"], row["column"]), {})
        lines.setdefault((row["group"], row["model"]), {})[row["figure"]] = row
    return [_table(dataset, column, lines, in_percent) for (dataset, column), lines in tables.items()]


def _table(
    dataset: str, column: str, lines: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]], in_percent: bool
) -> Figures:
    names = list(dict.fromkeys(name for figures in lines.values() for name in figures))
    body = []
    for (group, model), figures in sorted(lines.items(), key=lambda line: (_order(line[0][0]), line[0][1])):
        size = next(iter(figures.values()))["num_questions"]
        cells = (
            figure_text(name, figures.get(name), in_percent=in_percent, with_interval=name == "accuracy")
            for name in names
        )
        body.append((group, model, size, *cells))
    heads = [f"{heading_of(name)}, %" if in_percent and is_share(name) else heading_of(name) for name in names]
    heads = [f"{head} [95 %]" if name == "accuracy" else head for head, name in zip(heads, names, strict=True)]
    return Figures(f"{dataset} by {column}", (column, "model", "questions", *heads), tuple(body), num_names=2)


def _order(value: str) -> tuple[bool, float, str]:
    """Return the key by which values are sorted: numbers first, by size; ranges of tokens likewise."""
    if value in BUCKET_NAMES:
        return False, float(BUCKET_NAMES.index(value)), value
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    return (True, 0.0, value) if math.isnan(number) else (False, number, value)


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    """Return a value as the name of a group; empty for null, lists and objects."""
    if value is None or isinstance(value, list | dict):
        return ""
    return one_line(str(value).strip())[:_MOST_CHARS]
