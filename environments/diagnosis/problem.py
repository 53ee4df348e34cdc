"""Define what a problem of rollouts or scores is, its likely causes, and the table that holds both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

F = TypeVar("F")

FEW = 8
"""With fewer rollouts than this, what all of them have in common may be chance."""

UNKNOWN_CAUSE = "The cause is not clear from the rows: look at one with `treadle show`."


@dataclass(frozen=True, slots=True)
class Problem(Generic[F]):
    """A pattern in results that probably does not come from the model's ability."""

    name: str
    holds: Callable[[F], bool]
    sentence: Callable[[F], str]


@dataclass(frozen=True, slots=True)
class Cause(Generic[F]):
    """A likely cause of problems, with what to do."""

    problems: tuple[str, ...]
    holds: Callable[[F], bool]
    sentence: Callable[[F], str]


@dataclass(frozen=True, slots=True)
class ProblemTable(Generic[F]):
    """Problems in the order in which they are reported, and likely causes, the most specific first."""

    problems: tuple[Problem[F], ...]
    causes: tuple[Cause[F], ...]

    def problems_of(self, facts: F) -> list[Problem[F]]:
        """Return the problems that a group has."""
        return [problem for problem in self.problems if problem.holds(facts)]

    def causes_of(self, problem: Problem[F], facts: F) -> list[str]:
        """Return sentences with the likely causes of a problem; never empty."""
        found = [one.sentence(facts) for one in self.causes if problem.name in one.problems and one.holds(facts)]
        return found or [UNKNOWN_CAUSE]
