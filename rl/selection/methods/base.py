"""Define selection methods: they order the questions that pass the filters, and the first ones are selected.

A method of a user is a class in one file. Documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from treadle.core.registry import Entry
from treadle.rl.selection.dispersion import Dispersion


@dataclass(frozen=True, slots=True)
class Candidates:
    """Questions that pass the filters and compete for one limit: all of them, or under quotas those of a domain.

    Attributes:
        keys: Key of each question.
        domains: Domain of each question.
        figures: Statistics of the rollouts of each question, arrays of the same length. If there are several
            environments, `score_corr` is divided by the range of the environment's rewards, whose scales differ.
    """

    keys: Sequence[str]
    domains: Sequence[str]
    figures: Dispersion


@dataclass(frozen=True, slots=True)
class Ranking:
    """Order in which a method takes candidates.

    Attributes:
        keys: Keys in the order of selection; at least as many as should be selected.
        groups: Number of each candidate's group, from 0 in the order in which groups are taken; None without groups.
        parts: Name from the method's `PARTS` -> a number for each candidate; nan for a candidate without one.
    """

    keys: Sequence[str]
    groups: np.ndarray | None = None
    parts: Mapping[str, np.ndarray] = field(default_factory=dict)


class SelectionMethod(Entry):
    """Settings of a method, and the method itself. The filters, quotas and the limit are the same for every method."""

    GROUP: ClassVar[str] = ""
    """Word for one of the method's groups, such as `front`; empty if the method makes no groups."""
    PARTS: ClassVar[Mapping[str, str]] = {}
    """Name -> description of each number that the method gives for a candidate."""

    type: str = "pareto"
    """Method: `pareto`, `random`, the name of an entry point, or a class of your own as `my_selection.py:Class` or
    `package.module:Class`."""

    def rank(self, candidates: Candidates, limit: int, seed: int) -> Ranking:
        """Return the order of the candidates, of which the first `limit` are selected.

        It must depend on nothing but the arguments and not on the order of the candidates.
        """
        raise NotImplementedError
