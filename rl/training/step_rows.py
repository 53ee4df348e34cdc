"""Choose the rows of each step of a phase by the shares of environments: a pure function of the plan and the rows.

Documented in docs/behaviour/rl.md, part "Shares". Only the standard library is imported.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from treadle.core.seeds import derive_seed

SHARE_TOLERANCE = 1e-6
"""Largest distance of the sum of all shares from 1."""
_LOOKAHEAD = 200
"""Maximum number of steps over which two environments are compared. Shares without a difference until then, such as
0.2345678901 and 0.2345678902, may be taken in either order; to find the first difference could take billions of steps.
"""


def step_rows(
    environments: Sequence[str], shares: Mapping[str, float], prompts_per_step: int, num_steps: int, seed: int
) -> list[list[int]]:
    """Return the indices of the rows of each step, in a random order; no row is in a step twice.

    `environments` names the environment of each row. Each environment has its own passes over its rows, each in an
    order by the seed. It must have at least as many rows as a step may take; see `most_prompts`.
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(environments):
        places.setdefault(name, []).append(place)
    orders = {name: _Passes(name, places.get(name, []), seed) for name in shares}
    steps = []
    for step, counts in enumerate(itertools.islice(prompts_of_steps(shares, prompts_per_step), num_steps), 1):
        rows = [row for name, count in counts.items() for row in orders[name].take(count)]
        random.Random(derive_seed(seed, "step", step)).shuffle(rows)
        steps.append(rows)
    return steps


def most_prompts(share: float, shares: Mapping[str, float], prompts_per_step: int) -> int:
    """Return the largest number of prompts of a step that an environment with this share gets."""
    return math.ceil(_exact(share) * prompts_per_step / sum(map(_exact, shares.values())))


def prompts_of_steps(shares: Mapping[str, float], prompts_per_step: int) -> Iterator[dict[str, int]]:
    """Yield the number of prompts of each environment, step after step without end.

    The number of an environment is its share of `prompts_per_step`, rounded up or down; the numbers of a step add up to
    `prompts_per_step`. After n steps, an environment's total differs by less than 1 from n times its exact share.
    """
    total = sum(map(_exact, shares.values()))
    exact = {name: _exact(share) * prompts_per_step / total for name, share in shares.items()}
    whole = {name: math.floor(number) for name, number in exact.items()}
    rests = {name: exact[name] - whole[name] for name in sorted(exact) if exact[name] != whole[name]}
    given = dict.fromkeys(rests, 0)
    for step in itertools.count():
        rounded_up = _rounded_up(rests, given, step, prompts_per_step - sum(whole.values()))
        for name in rounded_up:
            given[name] += 1
        yield {name: whole[name] + (name in rounded_up) for name in exact}


def _exact(share: float) -> Fraction:
    """Return a share exactly as written, such as 3/10 for 0.3."""
    return Fraction(str(share))


def _rounded_up(rests: Mapping[str, Fraction], given: Mapping[str, int], step: int, number: int) -> set[str]:
    """Return the environments that get one prompt more in a step, counted from 0.

    This is proportionate fair scheduling (algorithm PF of Baruah et al., 1996, doi:10.1007/BF01940883): simpler rules,
    such as the largest remainder, are wrong for some shares of many environments.
    """
    urgent, contending = [], []
    for name, rest in rests.items():
        lag, sign = rest * step - given[name], _sign(rest, step)
        if lag > 0 and sign >= 0:
            urgent.append(name)
        elif lag >= 0 or sign > 0:
            contending.append(name)
    while len(urgent) < number:
        first = contending[0]
        for other in contending[1:]:
            if _is_before(rests[other], rests[first], step + 1):
                first = other
        contending.remove(first)
        urgent.append(first)
    return set(urgent)


def _sign(rest: Fraction, step: int) -> int:
    """Return the sign of the PF algorithm's characteristic string at a step."""
    part, whole = rest.numerator, rest.denominator
    value = part * (step + 1) - (part * step // whole + 1) * whole
    return (value > 0) - (value < 0)


def _is_before(one: Fraction, other: Fraction, step: int) -> bool:
    """Return whether the PF algorithm's characteristic string of `one` is larger than that of `other`, from a step on.

    Strings end at their first 0. Two that are equal for `_LOOKAHEAD` steps count as equal.
    """
    if one == other:
        return False
    mine = theirs = 0
    for later in range(step, step + _LOOKAHEAD):
        mine, theirs = _sign(one, later), _sign(other, later)
        if mine != theirs or not mine:
            break
    return mine > theirs


@dataclass
class _Passes:
    """Rows of one environment in the order of its passes."""

    name: str
    rows: Sequence[int]
    seed: int
    number: int = 0
    """Number of passes that have begun."""
    left: list[int] = field(default_factory=list)
    """Rows of the current pass that have not been taken."""

    def take(self, count: int) -> list[int]:
        """Return the next rows of a step.

        If the current pass has too few rows, a new pass begins, in which rows that the step already has come later.
        """
        taken, self.left = self.left[:count], self.left[count:]
        if len(taken) < count:
            order = list(self.rows)
            random.Random(derive_seed(self.seed, "rows", self.name, self.number)).shuffle(order)
            self.number += 1
            fresh = [row for row in order if row not in taken][: count - len(taken)]
            self.left = [row for row in order if row not in fresh]
            taken = [*taken, *fresh]
        return taken
