"""Report a selection: counts for the record, the page `report.md`, and the picture of its questions.

Groups and parts (numbers per question) of the method come from the choice, under the names that the method declares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.core.figures import Cell, Figures, plain, render_figures
from treadle.core.plots import COLOUR, LIGHT, draw_svg
from treadle.rl.selection.choice import DECISIONS, SELECTED, Choice

MEANINGS = {
    "selected": "a row",
    "held_out": "kept for evaluation",
    "selected_before": "an earlier phase trained on it, and exclude_previous is on",
    "too_few_rollouts": "fewer usable rollouts than min_rollouts",
    "all_right": "no usable rollout is wrong",
    "all_wrong": "no usable rollout is right",
    "over_quota": "mixed, but the quota of its domain was full without it",
    "over_limit": "mixed, but ranked below the selected questions",
}
_ROWS_SHOWN = 20
_GROUPS_SHOWN = 40
_TENTHS = 10
_POINTS_SHOWN = 2_000
"""Maximum number of distinct points per series. More points are thinned out evenly, because browsers are slow to open
a file with many."""
_SIZES = ((1, 2.5), (2, 4.0), (8, 6.0))
"""Pairs of a minimum number of questions on a point and the size of its marker."""
_LINES_SHOWN = 5
_PARTS_DRAWN = 3
"""Maximum number of histograms, each of one of the numbers that the method gives every question (its parts)."""
_GREY = "#c8c8c8"


class EarlierPhase(NamedTuple):
    """Questions that an earlier phase trained on."""

    phase: int
    num_rows: int
    mask: np.ndarray
    """Mask of the current questions that the earlier phase trained on, bool."""


class SelectionFindings(NamedTuple):
    """Results of a selection that the report shows."""

    choice: Choice
    datasets: Sequence[str]
    """Data set of each question."""
    environments: Sequence[str]
    """Name of the environment of each question."""
    earlier: Sequence[EarlierPhase]
    num_failed: int
    """Number of rollouts lost to infrastructure; they are not used."""
    num_unscored: int
    """Number of further rollouts without a verdict; they are not used either."""

    @property
    def is_mixed(self) -> bool:
        """True if the questions belong to more than one environment."""
        return len(set(self.environments)) > 1


class Group(NamedTuple):
    """Summary of one group of the method, such as a Pareto front; under quotas, of one domain's group."""

    rank: int
    domain: str
    """Domain of the group; empty if all domains are ranked together."""
    size: int
    num_selected: int
    tool: tuple[float, float]
    """Minimum and maximum of S_tool."""
    corr: tuple[float, float]


def metrics_of(found: SelectionFindings) -> dict[str, Any]:
    """Return flat metrics for the stage's record; data set names are escaped by `treadle.core.figures.plain`."""
    choice = found.choice
    selected = choice.decisions == SELECTED
    return {
        "questions": len(choice.keys),
        "rollouts": int(choice.dispersion.num_rollouts.sum()),
        "failed_rollouts": found.num_failed,
        "unscored_rollouts": found.num_unscored,
        **{("rows" if name == "selected" else f"left_out.{name}"): count for name, count in choice.counts().items()},
        **_method_metrics(choice),
        **{f"unfilled_quota.{name}": quota - taken for name, taken, quota in choice.unfilled()},
        "mean_correctness": _mean(choice.dispersion.mean),
        "mean_correctness_selected": _mean(choice.dispersion.mean[selected]),
        "mean_score_tool_selected": _mean(choice.dispersion.score_tool[selected]),
        "mean_score_corr_selected": _mean(choice.dispersion.score_corr[selected]),
        **_by_name("domain", choice.domains, selected),
        **_by_name("dataset", found.datasets, selected),
        **(_by_name("environment", found.environments, selected) if found.is_mixed else {}),
        **{
            f"overlap.{earlier.phase}.{name}": int((earlier.mask & (choice.decisions == code)).sum())
            for earlier in found.earlier
            for code, name in enumerate(DECISIONS)
        },
        **{
            f"overlap.{earlier.phase}.not_sampled": earlier.num_rows - int(earlier.mask.sum())
            for earlier in found.earlier
        },
    }


def _method_metrics(choice: Choice) -> dict[str, float | None]:
    """Return the numbers of groups and of groups with selected questions, and the size of the largest group.

    Under quotas these are also given by domain. Each part of the method has its mean over the selected questions.
    """
    found: dict[str, float | None] = {}
    if name := choice.method.GROUP:
        groups = groups_of(choice)
        pools = {"": groups}
        if choice.quotas:
            pools |= {
                f".{domain}": [group for group in groups if group.domain == domain]
                for domain in sorted(set(choice.domains))
            }
        for suffix, some in pools.items():
            found[f"{name}s{suffix}"] = len(some)
            found[f"largest_{name}{suffix}"] = max((group.size for group in some), default=0)
            found[f"selected_{name}s{suffix}"] = sum(group.num_selected > 0 for group in some)
    selected = choice.decisions == SELECTED
    return found | {f"part.{name}": _mean(values[selected]) for name, values in choice.parts.items()}


def groups_of(choice: Choice) -> list[Group]:
    """Return the groups of the method sorted by rank, then by domain; empty if it has none."""
    groups = []
    for domain, pool in choice.pools():
        ranked = np.flatnonzero(pool.rank >= 0)
        ranked = ranked[np.argsort(pool.rank[ranked], kind="stable")]
        borders = np.flatnonzero(np.diff(pool.rank[ranked])) + 1
        groups += [_group(pool, domain, members) for members in np.split(ranked, borders) if len(members)]
    return sorted(groups, key=lambda group: (group.rank, group.domain))


def _group(choice: Choice, domain: str, members: np.ndarray) -> Group:
    tool, corr = choice.dispersion.score_tool[members], choice.dispersion.score_corr[members]
    return Group(
        rank=int(choice.rank[members[0]]),
        domain=domain,
        size=len(members),
        num_selected=int((choice.decisions[members] == SELECTED).sum()),
        tool=(float(tool.min()), float(tool.max())),
        corr=(float(corr.min()), float(corr.max())),
    )


def _tenth_borders(means: np.ndarray) -> np.ndarray:
    """Return the borders of the tenths of [0, 1], or of the means' range if it is wider, shape (11,)."""
    known = means[~np.isnan(means)]
    return np.linspace(known.min(initial=0.0), known.max(initial=1.0), _TENTHS + 1)


def _tenths(values: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Count the values per tenth, shape (10,); the highest counts in the last tenth, nan is skipped."""
    known = (values[~np.isnan(values)] - borders[0]) / (borders[-1] - borders[0])
    # Rounding may put a border value slightly below its tenth; a border belongs to the upper tenth.
    places = np.minimum((known * _TENTHS + 1e-9).astype(np.int64), _TENTHS - 1)
    return np.bincount(places, minlength=_TENTHS)


def quota_note(choice: Choice) -> str:
    """Return a clause that lists the quotas that are not full; empty if all are full or no quota is set."""
    short = [f"{name} {taken:,} of {quota:,}" for name, taken, quota in choice.unfilled()]
    if not short:
        return ""
    return f"quotas with too few mixed questions: {', '.join(short)}; other domains do not fill them"


def render_report(found: SelectionFindings, phase: int) -> str:
    """Return the page `report.md`."""
    choice = found.choice
    counts = choice.counts()
    num_mixed = int(choice.ranked.sum())
    quotas = f" {note[0].upper()}{note[1:]}." if (note := quota_note(choice)) else ""
    lost = found.num_failed + found.num_unscored
    intro = (
        f"# Selection of phase {phase}\n\n"
        f"{counts['selected']:,} of {len(choice.keys):,} questions, chosen by "
        f"{int(choice.dispersion.num_rollouts.sum()):,} rollouts; {num_mixed:,} have rollouts that disagree; their "
        f"order is that of the method {choice.method.type}. Not "
        f"usable, and counted neither as right nor as wrong: {lost:,} rollouts ({found.num_failed:,} lost to "
        f"infrastructure, {found.num_unscored:,} without a verdict).{quotas}\n\n![questions](selection.svg)"
    )
    tables = [
        _decisions(counts),
        *([_groups_of_method(choice)] if choice.method.GROUP else []),
        *([_parts(choice)] if choice.parts else []),
        _correctness(choice),
        _groups("Domains", "domain", choice.domains, choice),
        _groups("Data sets", "data set", found.datasets, choice),
        *([_groups("Environments", "environment", found.environments, choice)] if found.is_mixed else []),
        *([_overlap(found)] if found.earlier else []),
    ]
    return f"{intro}\n\n{render_figures(tables)}\n"


def _decisions(counts: dict[str, int]) -> Figures:
    rows: tuple[tuple[Cell, ...], ...] = tuple((name, counts[name], MEANINGS[name]) for name in DECISIONS)
    note = "Every question is counted once, under the first of these that applies."
    return Figures("Outcomes of the questions", ("decision", "questions", "meaning"), rows, note)


def _groups_of_method(choice: Choice) -> Figures:
    name, groups = choice.method.GROUP, groups_of(choice)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            f"{group.domain} {group.rank}".strip(),
            group.size,
            group.num_selected,
            f"{group.tool[0]:.3f} to {group.tool[1]:.3f}",
            f"{group.corr[0]:.3f} to {group.corr[1]:.3f}",
        )
        for group in groups[:_ROWS_SHOWN]
    )
    hidden = len(groups) - _ROWS_SHOWN
    note = f"{hidden:,} further {name}s are not shown." if hidden > 0 else ""
    header = (name, "questions", "selected", "deviation of calls", "deviation of correctness")
    return Figures(f"{name.capitalize()}s", header, rows, note)


def _parts(choice: Choice) -> Figures:
    """Return a table of the numbers that the method gives questions: means over ranked and over selected questions."""
    selected = choice.decisions == SELECTED
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *map(_shown_mean, (values[choice.ranked], values[selected])), choice.method.PARTS[name])
        for name, values in choice.parts.items()
    )
    return Figures("Numbers of the method", ("name", "mean of mixed", "mean of selected", "meaning"), rows)


def _shown_mean(values: np.ndarray) -> str:
    mean = _mean(values)
    return "-" if mean is None else f"{mean:.3f}"


def _correctness(choice: Choice) -> Figures:
    means = choice.dispersion.mean
    borders = _tenth_borders(means)
    every, chosen = (_tenths(some, borders).tolist() for some in (means, means[choice.decisions == SELECTED]))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (f"{borders[index]:.1f} to {borders[index + 1]:.1f}", every[index], chosen[index]) for index in range(_TENTHS)
    )
    note = "A value on a border counts in the upper tenth; the highest in the last one."
    return Figures("Mean correctness of the questions", ("mean", "questions", "selected"), rows, note)


def _groups(title: str, name: str, names: Sequence[str], choice: Choice) -> Figures:
    every = Counter(names)
    mixed = Counter(names[number] for number in np.flatnonzero(choice.ranked).tolist())
    chosen = Counter(names[number] for number in np.flatnonzero(choice.decisions == SELECTED).tolist())
    ranked = sorted(every, key=lambda one: (-every[one], one))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (one, every[one], mixed[one], chosen[one]) for one in ranked[:_GROUPS_SHOWN]
    )
    hidden = len(ranked) - _GROUPS_SHOWN
    note = f"{hidden:,} further ones are not shown." if hidden > 0 else ""
    return Figures(title, (name, "questions", "mixed", "selected"), rows, note)


def _overlap(found: SelectionFindings) -> Figures:
    rows = []
    for earlier in found.earlier:
        counts = np.bincount(found.choice.decisions[earlier.mask], minlength=len(DECISIONS)).tolist()
        absent = earlier.num_rows - int(earlier.mask.sum())
        rows.append((str(earlier.phase), earlier.num_rows, *counts, absent))
    header = ("phase", "rows", *(name.replace("_", " ") for name in DECISIONS), "not sampled")
    return Figures("Outcomes of the rows of earlier phases", header, tuple(rows))


def _by_name(kind: str, names: Sequence[str], selected: np.ndarray) -> dict[str, int]:
    counts = Counter(plain(names[number]) for number in np.flatnonzero(selected).tolist())
    return {f"{kind}.{name}": count for name, count in sorted(counts.items())}


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(known.mean()), 6) if len(known) else None


def draw_selection(choice: Choice) -> bytes:
    """Return an SVG, with a row for each domain under quotas; equal choices give equal bytes.

    Raises ConfigError without matplotlib.
    """
    pools, group = choice.pools(), choice.method.GROUP
    parts = [] if group else list(choice.parts)[:_PARTS_DRAWN]
    columns = 2 + bool(group) + len(parts)

    def draw(figure: Any) -> None:
        rows = figure.subplots(len(pools), columns, squeeze=False)
        for (plane, *middle, correctness), (domain, pool) in zip(rows, pools, strict=True):
            of_domain = f" ({domain})" if domain else ""
            _draw_plane(plane, pool, of_domain)
            if group:
                _draw_groups(middle[0], pool, of_domain)
            for axes, name in zip(middle, parts, strict=False):
                _draw_part(axes, pool, name, of_domain)
            _draw_correctness(correctness, pool, of_domain)

    return draw_svg(draw, width=3.5 * columns, height=3.4 * len(pools))


def _draw_plane(axes: Any, choice: Choice, of_domain: str) -> None:
    groups = (
        ("filtered out", ~choice.ranked, _GREY),
        (
            "over the quota" if of_domain else "over the limit",
            choice.ranked & (choice.decisions != SELECTED),
            LIGHT,
        ),
        ("selected", choice.decisions == SELECTED, COLOUR),
    )
    for label, mask, colour in groups:
        points, counts = _distinct(choice, mask & ~np.isnan(choice.dispersion.score_tool))
        bounds = [least for least, _ in _SIZES[1:]]
        classes = np.digitize(counts, bounds)
        for number, (_, size) in enumerate(_SIZES):
            some = points[classes == number]
            axes.plot(some[:, 0], some[:, 1], "o", color=colour, markersize=size, markeredgewidth=0, alpha=0.8)
        axes.plot([], [], "o", color=colour, markersize=_SIZES[-1][1], markeredgewidth=0, label=label)
    group = choice.method.GROUP
    for rank in range(_LINES_SHOWN if group else 0):
        points, _ = _distinct(choice, choice.rank == rank)
        if len(points):
            axes.plot(points[:, 0], points[:, 1], color="black", linewidth=0.6, alpha=1.0 - rank / (_LINES_SHOWN + 1))
    title = f"Questions{f' and first {group}s' if group else ''}{of_domain}"
    axes.set(title=title, xlabel="deviation of calls", ylabel="deviation of correctness")
    _add_legend(axes, 3)


def _distinct(choice: Choice, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct points (n x 2, by S_tool) and the number of questions on each."""
    points = np.stack([choice.dispersion.score_tool[mask], choice.dispersion.score_corr[mask]], axis=1)
    distinct, counts = np.unique(points, axis=0, return_counts=True)
    step = -(-len(distinct) // _POINTS_SHOWN) or 1
    return distinct[::step], counts[::step]


def _draw_groups(axes: Any, choice: Choice, of_domain: str) -> None:
    groups, name = groups_of(choice), choice.method.GROUP
    edges = np.arange(len(groups) + 1) - 0.5
    axes.stairs([group.size for group in groups], edges, fill=True, color=LIGHT, label="questions")
    axes.stairs([group.num_selected for group in groups], edges, fill=True, color=COLOUR, label="selected")
    axes.set(title=f"Sizes of the {name}s{of_domain}", xlabel=name, ylabel="questions")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    _add_legend(axes, 2)


def _draw_part(axes: Any, choice: Choice, name: str, of_domain: str) -> None:
    """Draw histograms of a number that the method gives questions: over the ranked and over the selected ones."""
    values = choice.parts[name]
    known = values[np.isfinite(values)]
    edges = np.linspace(known.min(initial=0.0), known.max(initial=1.0), 21)
    for mask, colour, label in (
        (choice.ranked, LIGHT, "questions"),
        (choice.decisions == SELECTED, COLOUR, "selected"),
    ):
        counts, _ = np.histogram(values[mask & np.isfinite(values)], edges)
        axes.stairs(counts, edges, fill=True, color=colour, label=label)
    axes.set(title=f"{name}{of_domain}", xlabel=name, ylabel="questions")
    _add_legend(axes, 2)


def _draw_correctness(axes: Any, choice: Choice, of_domain: str) -> None:
    means = choice.dispersion.mean
    borders = _tenth_borders(means)
    middles, width = (borders[:-1] + borders[1:]) / 2, 0.9 * (borders[1] - borders[0])
    for values, colour, label in (
        (means, LIGHT, "questions"),
        (means[choice.decisions == SELECTED], COLOUR, "selected"),
    ):
        axes.bar(middles, _tenths(values, borders), width=width, color=colour, label=label)
    title = f"How right the rollouts are{of_domain}"
    axes.set(title=title, xlabel="mean correctness", ylabel="questions", xlim=(borders[0], borders[-1]))
    _add_legend(axes, 2)


def _add_legend(axes: Any, columns: int) -> None:
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, columnspacing=1.0)
