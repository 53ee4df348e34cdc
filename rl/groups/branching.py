"""Entropy branching: measure a model's uncertainty in a turn, and decide whether its trajectory branches.

After ARPO (arXiv 2507.19849), but with a baseline per trajectory. Entropies are means per token, divided by the
logarithm of the vocabulary size. Normative: docs/behaviour/group-rollouts.md, part "Branching".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.core.errors import ConfigError
from treadle.core.llm.types import Completion
from treadle.core.seeds import derive_seed

ENTROPY_WINDOW = 20
"""Number of tokens at the start of a turn over which entropy is averaged."""


def position_entropy(logprobs: Iterable[float]) -> float:
    """Return the entropy in nats of one position, from the known log-probabilities of tokens at this position."""
    return -sum(math.exp(logprob) * logprob for logprob in logprobs if logprob > -math.inf)


def turn_entropy(completion: Completion, vocab_size: int) -> float:
    """Return the mean entropy of the first tokens of a turn, in units of ln(vocab_size).

    Without entropies, the surprisal of the sampled tokens is used; at temperature 1 its expectation is the same. A turn
    without tokens has entropy 0. Raises ConfigError if the completion has neither entropies nor log-probabilities.
    """
    if completion.entropies is not None:
        values: Sequence[float] = completion.entropies[:ENTROPY_WINDOW]
    elif completion.logprobs is not None:
        values = [-logprob for logprob in completion.logprobs[:ENTROPY_WINDOW]]
    else:
        raise ConfigError(
            "branching needs log-probabilities of sampled tokens, which this model does not return; "
            "set rl.initial_rollouts to rl.group_size to disable branching"
        )
    return sum(values) / len(values) / math.log(vocab_size) if values else 0.0


def uniform(*parts: str | int) -> float:
    """Return a number in (0, 1] that depends only on `parts`."""
    return (derive_seed(*parts) + 1) / 2**31


@dataclass(frozen=True, slots=True)
class Branching:
    """Rule by which the trajectories of a group branch.

    Attributes:
        initial_rollouts: Trajectories that start from the question; at the group's size or above, there is no
            branching.
        beam_size: Maximum number of trajectories into which one branches in a round, including itself.
        probability: Probability of each branch attempt if the entropy equals that of the trajectory's first turn.
        entropy_weight: Increase of that probability per unit of entropy above the first turn's.
    """

    initial_rollouts: int
    beam_size: int = 2
    probability: float = 0.5
    entropy_weight: float = 0.2

    def __post_init__(self) -> None:
        if self.initial_rollouts < 1 or self.beam_size < 1 or not 0 <= self.probability <= 1:
            raise ValueError(f"invalid branching: {self}")

    def branches(self, draw: float, rise: float) -> bool:
        """Return whether a branch attempt succeeds.

        `draw` is uniform in (0, 1]; `rise` is the entropy above the baseline.
        """
        return min(max(draw - self.entropy_weight * rise, 0.0), 1.0) <= self.probability
