"""Entropy branching: how sure a model was in a turn, and whether its trajectory is continued more than once.

ARPO (arXiv 2507.19849), with a baseline of each trajectory's own. Entropies are means per token, as shares of the
logarithm of the vocabulary's size. Normative: docs/behaviour/group-rollouts.md, part "Branching".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.agent.rollout import derive_seed
from treadle.core.errors import ConfigError
from treadle.core.llm.types import Completion

if TYPE_CHECKING:
    from treadle.rl.config import RlOptions

ENTROPY_WINDOW = 20
"""First tokens of a turn whose entropy counts."""


def position_entropy(logprobs: Iterable[float]) -> float:
    """Entropy in nats of one position, from the log-probabilities of the candidates that are known."""
    return -sum(math.exp(logprob) * logprob for logprob in logprobs if logprob > -math.inf)


def turn_entropy(completion: Completion, vocab_size: int) -> float:
    """Mean entropy of the first tokens of a turn, in units of ln(vocab_size).

    Without entropies, from the surprisal of the sampled tokens, which is the same in the mean at temperature 1. A turn
    of no token has 0. Raises ConfigError for a model that tells neither.
    """
    if completion.entropies is not None:
        values: Sequence[float] = completion.entropies[:ENTROPY_WINDOW]
    elif completion.logprobs is not None:
        values = [-logprob for logprob in completion.logprobs[:ENTROPY_WINDOW]]
    else:
        raise ConfigError(
            "branching needs log-probabilities of sampled tokens, which this model does not give; "
            "set rl.initial_rollouts to rl.group_size to do without branching"
        )
    return sum(values) / len(values) / math.log(vocab_size) if values else 0.0


def uniform(*parts: str | int) -> float:
    """A number in (0, 1] from what it is drawn for; the same parts give the same number."""
    return (derive_seed(*parts) + 1) / 2**31


@dataclass(frozen=True, slots=True)
class Branching:
    """How a group comes to its size.

    Attributes:
        initial_rollouts: Trajectories that start from the question; the group's size or more means no branching.
        beam_size: Most trajectories that one becomes in a round, itself included.
        probability: Of each attempt to branch, where the entropy is that of the trajectory's first turn.
        entropy_weight: Added to it per unit of entropy above that.
    """

    initial_rollouts: int
    beam_size: int = 2
    probability: float = 0.5
    entropy_weight: float = 0.2

    def __post_init__(self) -> None:
        if self.initial_rollouts < 1 or self.beam_size < 1 or not 0 <= self.probability <= 1:
            raise ValueError(f"no such branching: {self}")

    @classmethod
    def from_options(cls, options: RlOptions) -> Branching:
        """The keys of `[rl]` that are about it."""
        return cls(
            options.initial_rollouts or options.group_size,
            options.beam_size,
            options.branch_probability,
            options.entropy_weight,
        )

    def branches(self, draw: float, rise: float) -> bool:
        """Whether an attempt succeeds; `draw` is uniform in (0, 1], `rise` is the entropy above the baseline."""
        return min(max(draw - self.entropy_weight * rise, 0.0), 1.0) <= self.probability
