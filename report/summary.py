"""Build the rows of the table `summary`: every figure of every model, per data set and average, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.eval.averages import ALL, EVERY, KNOWLEDGE, MATH, average_groups
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import DatasetFigures
from treadle.eval.figures.sums import FigureSums
from treadle.eval.metrics import bounds_of, is_meaningful, is_per_pass
from treadle.eval.statistics import Interval, average_interval, per_pass_interval, ratio_interval, share_interval
from treadle.eval.verdicts import agreement

Row = dict[str, Any]


def check_names(datasets: Sequence[str]) -> None:
    """Raise ConfigError if a data set has the name of an average."""
    taken = {ALL, EVERY, *((MATH, KNOWLEDGE) if len(datasets) > 1 else ())}
    if clash := sorted(taken.intersection(datasets)):
        raise ConfigError(
            f"a data set may not be called {clash[0]!r}, since the report has an average of this name; set another in "
            f'its source, such as `dataset = "{clash[0]}-test"`'
        )


def check_environments(datasets: Mapping[str, Collection[str]]) -> None:
    """Raise ConfigError if a data set has tasks of several environments; `datasets`: data set -> its environments."""
    for dataset, environments in datasets.items():
        if len(environments) > 1:
            raise ConfigError(
                f"data set {dataset!r} has tasks of the environments {', '.join(sorted(environments))}, whose figures "
                f'are not comparable; set another name in one of the sources, such as `dataset = "{dataset}-2"`'
            )


def figure_interval(sums: FigureSums, name: str, settings: ReportSettings) -> Interval | None:
    """Return a figure with its interval over questions, or None if it has no value.

    The interval is Wilson's if every rollout counts once, as 0 or 1; otherwise a bootstrap within the figure's bounds.
    """
    if sums.value is None:
        return None
    if sums.is_per_pass:
        amounts = list(sums.questions.values())
        return per_pass_interval(amounts, num_samples=settings.bootstrap_samples, seed=settings.seed)
    bounds = bounds_of(name)
    if sums.is_binary and bounds is not None:
        return share_interval([(right, int(count)) for right, count in sums.questions.values()])
    return ratio_interval(
        list(sums.questions.values()), num_samples=settings.bootstrap_samples, seed=settings.seed, bounds=bounds
    )


def model_rows(model: str, parts: Sequence[DatasetFigures], settings: ReportSettings) -> Iterator[Row]:
    """Yield the rows of one model: data sets first, then the averages if there are several data sets."""
    intervals = {
        part.dataset: {name: figure_interval(sums, name, settings) for name, sums in part.sums.items()}
        for part in parts
    }
    for part in parts:
        counts = {**part.quantiles, **_counts([part])}
        yield from _rows(model, part.dataset, [part], intervals[part.dataset], counts)
    by_name = {part.dataset: part for part in parts}
    areas = {part.dataset: part.area for part in parts}
    for average, datasets in shown_averages(areas, settings.headline).items():
        group = [by_name[dataset] for dataset in datasets]
        # pass@k of an average needs k rollouts in every data set.
        names = averaged([part.sums for part in group], [part.environments for part in group])
        means = {name: _average([intervals[part.dataset][name] for part in group]) for name in names}
        yield from _rows(model, average, group, means, _counts(group))


def averaged(figures: Sequence[Collection[str]], environments: Sequence[Sequence[str]]) -> list[str]:
    """Return the figures that an average over data sets has: those that all of its data sets have.

    `figures` and `environments` have the names of the figures and of the environments of each data set. Rewards of
    several environments are not averaged, because each has its own scale, and neither are amounts per right answer,
    which may be infinite.
    """
    shared = [name for name in figures[0] if not is_per_pass(name) and all(name in other for other in figures)]
    is_of_one = len({name for names in environments for name in names}) == 1
    return shared if is_of_one else [name for name in shared if name != "reward"]


def shown_averages(areas: Mapping[str, str], headline: Collection[str]) -> dict[str, list[str]]:
    """Map the name of each average worth showing to its data sets, given the area of each data set.

    Empty for a single data set. Otherwise `all` is always included; another average only if it covers several data sets
    and differs from `all`.
    """
    groups = average_groups(areas, headline) if len(areas) > 1 else {}
    return {name: group for name, group in groups.items() if name == ALL or (len(group) > 1 and group != groups[ALL])}


def _counts(group: Sequence[DatasetFigures]) -> dict[str, float | None]:
    """Return rollout counts over all data sets together, and the agreement of judges if there are several."""
    counts: Counter[str] = Counter()
    for part in group:
        counts.update(part.counts)
    found: dict[str, float | None] = {name: float(count) for name, count in counts.items()}
    asked = {part.judges for part in group if part.judges}
    if len(asked) != 1 or len(*asked) < 2:
        return found
    joint = agreement([verdicts for part in group for verdicts in part.joint_verdicts])
    return found | {
        "num_judged_jointly": float(joint.num_answers),
        "judge_agreement": joint.share,
        "judge_kappa": joint.kappa,
    }


def _average(parts: Sequence[Interval | None]) -> Interval | None:
    known = [part for part in parts if part is not None]
    return average_interval(known) if known and len(known) == len(parts) else None


def _rows(
    model: str,
    dataset: str,
    group: Sequence[DatasetFigures],
    intervals: Mapping[str, Interval | None],
    counts: Mapping[str, float | None],
) -> Iterator[Row]:
    size = {
        "num_datasets": len(group),
        "num_rollouts": sum(part.num_rollouts for part in group),
        "num_questions": sum(part.num_questions for part in group),
    }
    environments = sorted({name for part in group for name in part.environments})
    num_calls = sum(part.sums["calls_requested"].value or 0.0 for part in group if "calls_requested" in part.sums)
    for name, found in intervals.items():
        interval = found if is_meaningful(name, num_calls) else None
        yield {
            "model": model,
            "dataset": dataset,
            "environments": environments,
            "figure": name,
            **interval_columns(interval),
            **size,
            "num_undecided": sum(part.sums[name].num_undecided for part in group),
        }
    for name, count in counts.items():
        columns = interval_columns(None) | {"value": count}
        yield {
            "model": model,
            "dataset": dataset,
            "environments": environments,
            "figure": name,
            **columns,
            **size,
            "num_undecided": 0,
        }


def interval_columns(interval: Interval | None) -> Row:
    """Return the columns with a figure and its interval; all null if `interval` is None."""
    if interval is None:
        return {"value": None, "low": None, "high": None, "method": None}
    low, high = interval.ends
    return {"value": interval.mean, "low": low, "high": high, "method": interval.method}


def label_prefixes(tables: Sequence[tuple[Address, str]]) -> list[str | None]:
    """Return the prefix of the model's name for each table of scores; None for a table that duplicates an earlier one.

    Each table is given by its `scores` instance and its digest. A model whose scores are the same in all iterations
    appears once, without a prefix. A model with several versions gets its iteration as prefix: `1/tuned`, `2/tuned`.
    """
    if len({address.iteration for address, _ in tables}) < 2:
        return [""] * len(tables)
    seen = [(address.qualifier, digest) for address, digest in tables]
    num_versions = Counter(model for model, _ in set(seen))
    return [
        None if one in seen[:place] else f"{address.iteration}/" if num_versions[address.qualifier] > 1 else ""
        for place, (one, (address, _)) in enumerate(zip(seen, tables, strict=True))
    ]
