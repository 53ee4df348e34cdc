"""Select the rows of `sft_rows` to train on; show their lengths and target shares in a table and a picture."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from treadle.core.figures import Figures, render_table
from treadle.core.plots import COLOUR, LIGHT, WARM, draw_svg
from treadle.core.untrusted.sanitize import one_line
from treadle.sft.config import SftOptions

COLUMNS = (
    "operator",
    "dataset",
    "num_tokens",
    "num_prompt_tokens",
    "num_result_tokens",
    "num_message_tokens",
    "num_target_tokens",
)
"""Columns of `sft_rows` that are used."""
_NUMBERS = COLUMNS[2:]
_GROUPS_SHOWN = 40
_BINS = 40
_OPERATORS_SHOWN = 8


class RowSelection:
    """A filter of rows: those with token ids, within the cut-off, up to a maximum number.

    It takes rows batch by batch, in their order (they are shuffled), and counts the rows that it leaves out.

    Rows are never truncated: half a trajectory would teach the model to stop in the middle.
    """

    def __init__(self, options: SftOptions) -> None:
        self._cutoff_tokens = options.cutoff_tokens
        self._max_rows = options.max_rows
        self.num_read = 0
        """Number of rows read."""
        self.num_text_mode = 0
        """Number of rows without token ids."""
        self.num_too_long = 0
        """Number of rows with token ids that are longer than `cutoff_tokens`."""
        self.num_over_limit = 0
        """Number of rows that could be trained on, but exceed `max_rows`."""
        self.num_rows = 0
        """Number of rows taken."""
        self.longest_row = 0
        """Number of tokens of the longest row taken."""

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch to train on; the batch must have the column `num_tokens`."""
        import pyarrow.compute as pc

        self.num_read += batch.num_rows
        taken = batch.filter(pc.greater(batch["num_tokens"], 0))
        self.num_text_mode += batch.num_rows - taken.num_rows
        if self._cutoff_tokens is not None:
            fitting = taken.filter(pc.less_equal(taken["num_tokens"], self._cutoff_tokens))
            self.num_too_long += taken.num_rows - fitting.num_rows
            taken = fitting
        if self._max_rows is not None:
            wanted = taken.slice(0, self._max_rows - self.num_rows)
            self.num_over_limit += taken.num_rows - wanted.num_rows
            taken = wanted
        if taken.num_rows:
            self.num_rows += taken.num_rows
            self.longest_row = max(self.longest_row, pc.max(taken["num_tokens"]).as_py())
        return taken

    def left_out(self) -> dict[str, int]:
        """Return the number of rows left out, by reason."""
        return {"text_mode": self.num_text_mode, "too_long": self.num_too_long, "over_limit": self.num_over_limit}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Statistics of the rows of one operator, of one data set, or of all rows."""

    kind: str
    """`all`, `operator` or `dataset`."""
    name: str
    num_rows: int
    tokens: int
    target_tokens: int
    median_tokens: float
    p95_tokens: float
    longest: int

    @property
    def target_share(self) -> float:
        """Share of the group's tokens that are targets."""
        return self.target_tokens / self.tokens if self.tokens else 0.0


class RowStatistics:
    """A collector of row statistics; it keeps five numbers and two codes per row, and no text."""

    def __init__(self) -> None:
        self._numbers = {name: array("i") for name in _NUMBERS}
        self._places: dict[str, dict[str, int]] = {"operator": {}, "dataset": {}}
        self._codes = {kind: array("i") for kind in self._places}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, which must have `COLUMNS`."""
        for name, numbers in self._numbers.items():
            numbers.frombytes(np.ascontiguousarray(batch[name].to_numpy(), np.int32).tobytes())
        for kind, places in self._places.items():
            self._codes[kind].extend(places.setdefault(name, len(places)) for name in batch[kind].to_pylist())

    def numbers(self, name: str) -> np.ndarray:
        """Return one of the numeric columns, int32 with one value per row."""
        return np.frombuffer(self._numbers[name], np.int32) if self._numbers[name] else np.empty(0, np.int32)

    def target_shares(self) -> np.ndarray:
        """Return the share of target tokens of each row."""
        shares: np.ndarray = self.numbers("num_target_tokens") / np.maximum(self.numbers("num_tokens"), 1)
        return shares

    def num_unmasked(self) -> int:
        """Return the number of rows whose tool results are targets: without `mask_results`, all rows with results."""
        others = ("num_prompt_tokens", "num_message_tokens", "num_result_tokens", "num_target_tokens")
        return int((sum(map(self.numbers, others)) > self.numbers("num_tokens")).sum())

    def groups(self) -> list[RowGroup]:
        """Return the statistics of all rows, then by operator, then by data set, each sorted by name."""
        everything = np.ones(len(self._numbers["num_tokens"]), bool)
        found = [self._group("all", "all", everything)]
        for kind, places in self._places.items():
            codes = np.frombuffer(self._codes[kind], np.int32) if places else np.empty(0, np.int32)
            found += [self._group(kind, name, codes == place) for name, place in sorted(places.items())]
        return found

    def _group(self, kind: str, name: str, chosen: np.ndarray) -> RowGroup:
        lengths = self.numbers("num_tokens")[chosen]
        if not lengths.size:
            return RowGroup(kind, name, 0, 0, 0, 0.0, 0.0, 0)
        median, high = np.percentile(lengths, (50, 95)).tolist()
        targets = int(self.numbers("num_target_tokens")[chosen].sum(dtype=np.int64))
        total = int(lengths.sum(dtype=np.int64))
        return RowGroup(kind, name, int(lengths.size), total, targets, median, high, int(lengths.max()))


def metrics_of(statistics: RowStatistics, selection: RowSelection) -> dict[str, Any]:
    """Return flat metrics for the stage record."""
    overall = statistics.groups()[0]
    return {
        "rows": overall.num_rows,
        "tokens": overall.tokens,
        "target_tokens": overall.target_tokens,
        "target_share": round(overall.target_share, 4),
        "longest_row": overall.longest,
        "unmasked_rows": statistics.num_unmasked(),
        **{f"left_out.{why}": count for why, count in selection.left_out().items()},
    }


def render_statistics(statistics: RowStatistics, selection: RowSelection) -> str:
    """Return a section of Markdown: rows trained on, rows left out, and a table of groups."""
    groups = statistics.groups()
    overall, left_out = groups[0], selection.left_out()
    parts = [
        "## Rows",
        f"{overall.num_rows:,} of {selection.num_read:,} rows are trained on: {overall.tokens:,} tokens, "
        f"{overall.target_tokens:,} of them targets ({overall.target_share:.1%}). Left out: {left_out['too_long']:,} "
        f"longer than the cut-off, {left_out['text_mode']:,} without token ids, {left_out['over_limit']:,} over the "
        f"limit of rows. Rows whose results are targets too: {statistics.num_unmasked():,}.",
        render_table(_figures(groups[:_GROUPS_SHOWN])),
    ]
    if len(groups) > _GROUPS_SHOWN:
        parts.append(f"{len(groups) - _GROUPS_SHOWN:,} further groups are not shown.")
    return "\n\n".join(parts) + "\n"


def _figures(groups: Sequence[RowGroup]) -> Figures:
    header = ("", "rows", "tokens", "median", "95 %", "longest", "targets")
    rows = []
    for group in groups:
        name = group.name if group.kind == "all" else f"{group.kind} {one_line(group.name)}"
        numbers = (group.num_rows, group.tokens, group.median_tokens, group.p95_tokens, group.longest)
        rows.append((name, *(f"{number:,.0f}" for number in numbers), f"{group.target_share:.1%}"))
    return Figures("", header, tuple(rows))


def draw_rows(statistics: RowStatistics, cutoff_tokens: int | None = None) -> bytes:
    """Return an SVG with two histograms, and the shares of prompt and results, and of targets, by operator.

    Equal rows give equal bytes. Raises ConfigError without matplotlib.
    """

    def draw(figure: Any) -> None:
        lengths, shares, operators = figure.subplots(1, 3)
        _draw_lengths(lengths, statistics.numbers("num_tokens"), cutoff_tokens)
        _draw_shares(shares, statistics.target_shares())
        _draw_operators(operators, statistics)

    return draw_svg(draw, width=10.0, height=3.2)


def _draw_lengths(axes: Any, lengths: np.ndarray, cutoff_tokens: int | None) -> None:
    axes.hist(lengths, bins=_BINS, color=COLOUR)
    if lengths.size:
        middle = float(np.median(lengths))
        axes.axvline(middle, color="black", linewidth=1, label=f"median {middle:,.0f}")
    if cutoff_tokens is not None and lengths.size and cutoff_tokens <= 1.5 * float(lengths.max()):
        axes.axvline(cutoff_tokens, color=WARM, linewidth=1, linestyle="--", label=f"cut-off {cutoff_tokens:,}")
    axes.set(title="Length of rows", xlabel="tokens", ylabel="rows")
    if lengths.size:
        axes.legend(frameon=False)


def _draw_shares(axes: Any, shares: np.ndarray) -> None:
    axes.hist(100.0 * shares, bins=_BINS, range=(0.0, 100.0), color=COLOUR)
    axes.set(title="Share of targets", xlabel="% of a row's tokens", ylabel="rows")


def _draw_operators(axes: Any, statistics: RowStatistics) -> None:
    groups = [group for group in statistics.groups() if group.kind == "operator"]
    largest = sorted(groups, key=lambda group: (-group.num_rows, group.name))[:_OPERATORS_SHOWN][::-1]
    names = [f"{one_line(group.name)[:24]} ({group.num_rows:,})" for group in largest]
    targets = [100.0 * group.target_share for group in largest]
    places = range(len(largest))
    axes.barh(places, [100.0] * len(largest), color=LIGHT, label="prompt and results")
    axes.barh(places, targets, color=COLOUR, label="targets")
    axes.set_yticks(places, names)
    axes.set(title="Tokens by operator", xlabel="%", xlim=(0.0, 100.0))
    if largest:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)
