"""Index all trajectories of a run by filter columns: find the rows of a selection, count values, list neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from treadle.environments.rollouts.tool_counts import MAX_TOOLS, OTHERS
from treadle.viewer.columns import MultiValueColumn, SingleValueColumn
from treadle.viewer.selection import FILTERS, PAGE_ROWS, Selection
from treadle.viewer.trajectories import FACTS, TOOL_OUTCOMES, VERDICTS

_MAX_CACHED_RESULTS = 32


class FilterValue(NamedTuple):
    """A value of a filter column, with the number of rows that have it and pass all other filters."""

    value: str
    num: int
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class SelectionResult:
    """Result of a selection."""

    rows: np.ndarray
    """Row numbers, in order."""
    values: dict[str, list[FilterValue]]
    """Filter column -> its values. Values without rows are left out unless chosen."""

    @property
    def num_pages(self) -> int:
        """Number of pages, at least 1."""
        return max(-(-len(self.rows) // PAGE_ROWS), 1)


class Index:
    """Trajectories of all instances, concatenated."""

    def __init__(
        self, facts: Sequence[pa.Table], instances: Sequence[str], search: Callable[[str], np.ndarray]
    ) -> None:
        """Build the index from a table of `FACTS` per instance.

        `search` maps a text to a mask of the rows that contain it.
        """
        self.facts = pa.concat_tables([FACTS.empty_table(), *facts]).combine_chunks()
        self.starts = dict(zip(instances, np.cumsum([0, *(len(table) for table in facts)]).tolist(), strict=False))
        self._search = search
        orders = {"instance": instances, "verdict": VERDICTS}
        self._columns: dict[str, SingleValueColumn | MultiValueColumn] = {
            name: SingleValueColumn(self.facts[name], orders.get(name, ()))
            for name in FILTERS
            if name not in ("tool", "tools")
        }
        self._columns["tool"] = MultiValueColumn(*_tool_bits(self.facts["tool"].combine_chunks()))
        self._columns["tools"] = MultiValueColumn(self.facts["tools"].to_numpy(), TOOL_OUTCOMES)
        self._cached = lru_cache(_MAX_CACHED_RESULTS)(self._found)

    @cached_property
    def has_calls(self) -> bool:
        """Whether any trajectory made a tool call."""
        return bool(pc.any(pc.greater(self.facts["calls"], 0)).as_py())

    @cached_property
    def has_seconds(self) -> bool:
        """Whether the duration of any trajectory is known."""
        return bool(self.facts["seconds"].null_count < len(self))

    @cached_property
    def environments(self) -> set[tuple[str, str]]:
        """Pairs of an instance and the name of an environment of its trajectories."""
        pairs = self.facts.group_by(["instance", "environment"]).aggregate([]).to_pylist()
        return {(pair["instance"], pair["environment"]) for pair in pairs}

    def __len__(self) -> int:
        return len(self.facts)

    def find(self, selection: Selection) -> SelectionResult:
        """Return rows and counts of a selection. Raise ArtifactError if a text search hits a damaged table."""
        return self._cached(selection)

    def _found(self, selection: Selection) -> SelectionResult:
        rows = np.ones(len(self), bool)
        if selection.question:
            rows &= self._question_mask(selection.question)
        if selection.text:
            rows &= self._search(selection.text)
        masks = {name: self._columns[name].mask(values) for name, values in selection.filters.items()}
        # Counts of a column use the rows that pass the other filters: what choosing one more value would add.
        misses = np.zeros(len(self), np.uint8)
        for mask in masks.values():
            misses += ~mask
        values = {}
        for name in FILTERS:
            open_rows = rows & (misses == 0) if name not in masks else rows & (misses - ~masks[name] == 0)
            values[name] = self._values(name, open_rows, selection.filters.get(name, frozenset()))
        return SelectionResult(self._sorted(np.flatnonzero(rows & (misses == 0)), selection.sort), values)

    def _question_mask(self, key: str) -> np.ndarray:
        mask: np.ndarray = pc.equal(self.facts["question_key"], key).to_numpy()
        return mask

    def _values(self, name: str, rows: np.ndarray, chosen: frozenset[str]) -> list[FilterValue]:
        column = self._columns[name]
        counted = zip(column.values, column.counts(rows), strict=True)
        found = [FilterValue(value, count, value in chosen) for value, count in counted if value]
        found += [FilterValue(value, 0, True) for value in sorted(chosen.difference(column.values))]
        return [one for one in found if one.num or one.is_chosen]

    def _sorted(self, rows: np.ndarray, sort: str) -> np.ndarray:
        if not sort:
            return rows
        values = self.facts[sort.removeprefix("-")].to_numpy()[rows].astype(np.float64)
        # NaN sorts last in both directions.
        return rows[np.argsort(-values if sort.startswith("-") else values, kind="stable")]

    def page(self, found: SelectionResult, number: int) -> list[dict[str, Any]]:
        """Return the rows of a page; pages start at 1."""
        rows = found.rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
        return self.rows(rows)

    def rows(self, numbers: np.ndarray | Sequence[int]) -> list[dict[str, Any]]:
        """Return the facts of some rows."""
        found: list[dict[str, Any]] = self.facts.take(pa.array(numbers, pa.int64())).to_pylist()
        return found

    def number(self, instance: str, key: str) -> int | None:
        """Return the row number of a trajectory, or None if it is not in the index."""
        return self._numbers.get((instance, key))

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        instances, keys = self.facts["instance"].to_pylist(), self.facts["key"].to_pylist()
        return {pair: number for number, pair in enumerate(zip(instances, keys, strict=True))}

    @cached_property
    def _children(self) -> dict[tuple[str, str], list[int]]:
        children: dict[tuple[str, str], list[int]] = {}
        parents = self.facts["parent"].to_pylist()
        instances = self.facts["instance"].to_pylist()
        for number, (instance, parent) in enumerate(zip(instances, parents, strict=True)):
            if parent:
                children.setdefault((instance, parent), []).append(number)
        return children

    def children(self, instance: str, key: str) -> list[int]:
        """Return the row numbers of trajectories made from this one."""
        return self._children.get((instance, key), [])

    def of_question(self, question: str) -> np.ndarray:
        """Return the row numbers of a question in all instances."""
        return np.flatnonzero(self._question_mask(question))


def _tool_bits(names: pa.ListArray) -> tuple[np.ndarray, list[str]]:
    """Return the tools of each row as bits, and the names that these represent: the most common ones, then `OTHERS`."""
    encoded = pc.list_flatten(names).dictionary_encode()
    found: list[str] = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    frequency = np.bincount(codes, minlength=len(found))
    ranks = sorted(range(len(found)), key=lambda n: (-frequency[n], found[n]))[:MAX_TOOLS]
    places = np.full(len(found), MAX_TOOLS)
    places[ranks] = np.arange(len(ranks))
    bits = np.zeros(len(names), np.int32)
    np.bitwise_or.at(bits, pc.list_parent_indices(names).to_numpy(), (1 << places[codes]).astype(np.int32))
    shown = [found[rank] for rank in ranks]
    return bits, [*shown, *[""] * (MAX_TOOLS - len(shown)), OTHERS]


def neighbours(found: SelectionResult, number: int) -> tuple[int | None, int | None, int]:
    """Return the rows before and after `number` in a selection, and its position from 1 (0 if it is not in there)."""
    places = np.flatnonzero(found.rows == number)
    if not len(places):
        return None, None, 0
    place = int(places[0])
    before = int(found.rows[place - 1]) if place else None
    after = int(found.rows[place + 1]) if place + 1 < len(found.rows) else None
    return before, after, place + 1
