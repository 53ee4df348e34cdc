"""Find training questions that repeat benchmark questions.

A training question is contaminated if it equals a benchmark question, contains a whole short one, or shares runs of 13
words with one that together cover a configured share of the benchmark question.

A run that many benchmark questions contain, such as those of one template, is common; all others are rare. A training
question is compared with all benchmark questions that share a rare run with it. Benchmark questions that share only
common runs with it are compared only if all common runs of the index together cover the configured share of them. The
first match among these depends on the shared common runs alone, so it is remembered for each set of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import merge
from itertools import groupby

from treadle.datagen.questions.question_similarity import tokenize

RUN_TOKENS = 13
"""Length in tokens of a run that counts as copied."""
MIN_CONTAINED_TOKENS = 8
"""Minimum number of tokens of a benchmark question that may match inside a training question. A shorter one must
equal the whole question, because it may occur in unrelated questions."""
_MAX_RARE_OCCURRENCES = 8
"""Number of occurrences in the benchmarks above which a run is common."""
_MAX_REMEMBERED = 4_096


@dataclass(frozen=True, slots=True)
class Contamination:
    """The benchmark row that a training question repeats."""

    benchmark: str
    row: int
    match: str


@dataclass(frozen=True, slots=True)
class _Row:
    """A benchmark question."""

    benchmark: str
    row: int
    num_tokens: int
    runs: tuple[int, ...]
    """Hash of the run at each position."""


class BenchmarkIndex:
    """Index of the benchmark questions that must not be in the training set."""

    def __init__(self, overlap: float = 0.5) -> None:
        self._overlap = overlap
        self._rows: list[_Row] = []
        self._exact: dict[tuple[str, ...], int] = {}
        self._with_run: dict[int, list[int]] = defaultdict(list)
        self._short_lengths: set[int] = set()
        self._within_reach: dict[int, list[int]] | None = None
        self._by_common: dict[frozenset[int], int | None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, benchmark: str, row: int, question: str) -> None:
        """Add a benchmark question."""
        tokens = _folded(question)
        number = len(self._rows)
        runs = _runs(tokens)
        self._rows.append(_Row(benchmark, row, len(tokens), runs))
        self._exact.setdefault(tuple(tokens), number)
        if MIN_CONTAINED_TOKENS <= len(tokens) < RUN_TOKENS:
            self._short_lengths.add(len(tokens))
        for run in runs:
            self._with_run[run].append(number)
        self._within_reach = None
        self._by_common.clear()

    def find(self, question: str) -> Contamination | None:
        """Return the first benchmark row that the question repeats, or None."""
        tokens = _folded(question)
        if (number := self._exact.get(tuple(tokens))) is not None:
            return self._found(number, "equals it")
        for length in sorted(self._short_lengths):
            for start in range(len(tokens) - length + 1):
                if (number := self._exact.get(tuple(tokens[start : start + length]))) is not None:
                    return self._found(number, "contains it")
        return self._find_runs(frozenset(run for run in _runs(tokens) if run in self._with_run))

    def _find_runs(self, shared: frozenset[int]) -> Contamination | None:
        common = frozenset(run for run in shared if len(self._with_run[run]) > _MAX_RARE_OCCURRENCES)
        rows = {number for run in shared - common for number in self._with_run[run]}
        found = [number for number in rows if self._share(number, shared) >= self._overlap]
        if common and (number := self._first_of_common(common)) is not None:
            found.append(number)
        if not found:
            return None
        share = self._share(min(found), shared)
        return self._found(min(found), f"shares runs of {RUN_TOKENS} words that cover {share:.0%} of it")

    def _first_of_common(self, common: frozenset[int]) -> int | None:
        """Return the number of the first benchmark row of which these runs cover the configured share, or None."""
        if common not in self._by_common:
            if len(self._by_common) >= _MAX_REMEMBERED:
                self._by_common.clear()
            reach = self._rows_within_reach()
            numbers = (number for number, _ in groupby(merge(*(reach[run] for run in common))))
            enough = (number for number in numbers if self._share(number, common) >= self._overlap)
            self._by_common[common] = next(enough, None)
        return self._by_common[common]

    def _rows_within_reach(self) -> Mapping[int, list[int]]:
        """Return common run -> rows with it of which all common runs together cover the configured share."""
        if self._within_reach is None:
            common = {run for run, numbers in self._with_run.items() if len(numbers) > _MAX_RARE_OCCURRENCES}
            self._within_reach = {run: [] for run in common}
            for number, row in enumerate(self._rows):
                if self._share(number, common) >= self._overlap:
                    for run in common.intersection(row.runs):
                        self._within_reach[run].append(number)
        return self._within_reach

    def _share(self, number: int, shared: Set[int]) -> float:
        """Return the share of a row's tokens that the shared runs cover."""
        row = self._rows[number]
        covered = end = 0
        for start, run in enumerate(row.runs):
            if run in shared:
                covered += start + RUN_TOKENS - max(start, end)
                end = start + RUN_TOKENS
        return covered / row.num_tokens

    def _found(self, number: int, match: str) -> Contamination:
        row = self._rows[number]
        return Contamination(row.benchmark, row.row, match)


def _runs(tokens: Sequence[str]) -> tuple[int, ...]:
    return tuple(hash(tuple(tokens[start : start + RUN_TOKENS])) for start in range(len(tokens) - RUN_TOKENS + 1))


def _folded(question: str) -> list[str]:
    return [token.casefold() for token in tokenize(question)]
