"""Training questions that give a benchmark away.

A training question is contaminated when it equals a benchmark question, contains a short one whole, or shares runs
of 13 words with one that together cover a set share of the benchmark question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.datagen.duplicates import tokenize

RUN = 13
"""Length in tokens of a run that counts as copied."""
SHORTEST = 8
"""A benchmark question of fewer tokens is matched only as a whole question: it may well be part of an honest one."""


@dataclass(frozen=True, slots=True)
class Contamination:
    """The benchmark row that a training question repeats."""

    benchmark: str
    row: int
    how: str


class BenchmarkIndex:
    """Questions of the benchmarks to keep out of the training set."""

    def __init__(self, overlap: float = 0.5) -> None:
        self._overlap = overlap
        self._rows: list[tuple[str, int, int]] = []
        self._whole: dict[tuple[str, ...], int] = {}
        self._runs: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        self._short_lengths: set[int] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, benchmark: str, row: int, question: str) -> None:
        """Take in one benchmark question."""
        tokens = _folded(question)
        number = len(self._rows)
        self._rows.append((benchmark, row, len(tokens)))
        self._whole.setdefault(tuple(tokens), number)
        if SHORTEST <= len(tokens) < RUN:
            self._short_lengths.add(len(tokens))
        for start in range(len(tokens) - RUN + 1):
            self._runs[tuple(tokens[start : start + RUN])].append((number, start))

    def find(self, question: str) -> Contamination | None:
        """The first benchmark row that the question repeats, or None."""
        tokens = _folded(question)
        if (number := self._whole.get(tuple(tokens))) is not None:
            return self._found(number, "equals it")
        for length in sorted(self._short_lengths):
            for start in range(len(tokens) - length + 1):
                if (number := self._whole.get(tuple(tokens[start : start + length]))) is not None:
                    return self._found(number, "contains it")
        return self._find_runs(tokens)

    def _find_runs(self, tokens: Sequence[str]) -> Contamination | None:
        covered: dict[int, set[int]] = defaultdict(set)
        for start in range(len(tokens) - RUN + 1):
            for number, at in self._runs.get(tuple(tokens[start : start + RUN]), ()):
                covered[number].update(range(at, at + RUN))
        for number in sorted(covered):
            share = len(covered[number]) / self._rows[number][2]
            if share >= self._overlap:
                return self._found(number, f"shares runs of {RUN} words that cover {share:.0%} of it")
        return None

    def _found(self, number: int, how: str) -> Contamination:
        benchmark, row, _ = self._rows[number]
        return Contamination(benchmark, row, how)


def _folded(question: str) -> list[str]:
    return [token.casefold() for token in tokenize(question)]
