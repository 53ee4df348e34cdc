"""Aggregate log-ratios of tokens to the score of a sequence: the weight of each token, and advantages of turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

Aggregate = Literal["token_mean", "turn_sum", "sum"]
"""How the log-ratios of a sequence become its score. `token_mean`: mean over all tokens of the model, as in the code
released for SWEET-RL. `turn_sum`: sum over turns of the mean within each, as in its paper. `sum`: sum over all tokens,
as in DPO."""


def token_weights(mask: Sequence[int], turns: Sequence[int], aggregate: Aggregate) -> list[float]:
    """Return the weight of each token in the score of its sequence; 0 where `mask` is 0.

    `turns` has the number of tokens with mask 1 of each turn, in order. Raises ValueError if the sum of these numbers
    is not the number of all tokens with mask 1.
    """
    num_tokens = sum(mask)
    if sum(turns) != num_tokens:
        raise ValueError(f"turns of {sum(turns)} tokens do not fit a mask of {num_tokens}")
    each: Iterator[float]
    if aggregate == "turn_sum":
        each = itertools.chain.from_iterable(itertools.repeat(1.0 / length, length) for length in turns if length)
    else:
        each = itertools.repeat(1.0 if aggregate == "sum" else 1.0 / max(num_tokens, 1))
    return [next(each) if kept else 0.0 for kept in mask]


def advantage(critic_sum: float, reference_sum: float, num_tokens: int, *, is_mean: bool) -> float:
    """Return the advantage of a turn in nats: the log-ratio of critic and reference, per token if `is_mean`.

    Both sums are over the same `num_tokens` tokens, at least one.
    """
    difference = critic_sum - reference_sum
    return difference / num_tokens if is_mean else difference
