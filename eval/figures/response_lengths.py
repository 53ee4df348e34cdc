"""Split rollouts by the number of tokens that the model wrote, and compute quantiles of it. Pure functions.

Documented in docs/behaviour/metrics.md.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from treadle.eval.scored_rollout import ScoredRollout

RESPONSE_TOKENS = "response_tokens:"
"""Prefix of the names of quantiles of the number of response tokens."""
_QUANTILES: Mapping[str, tuple[int, str]] = {
    "p25": (25, "lower quartile"),
    "p50": (50, "median"),
    "p75": (75, "upper quartile"),
    "p90": (90, "90 % below"),
    "p95": (95, "95 % below"),
}
QUANTILES: Mapping[str, str] = {
    f"{RESPONSE_TOKENS}{name}": f"response tokens, {title}" for name, (_, title) in _QUANTILES.items()
}
"""Name of a quantile -> its title."""

BUCKETS = "response tokens"
"""Name of the split by fixed numbers of tokens, as published (arXiv 2510.25320)."""
QUARTERS = "response tokens, quarters"
"""Name of the split into four parts of about the same size."""
_FEWEST = 8
"""Minimum number of rollouts for a split into quarters."""
_BUCKET_STARTS = (50, 200, 500)
BUCKET_NAMES = ("<50", "50-199", "200-499", ">=500")


def response_quantiles(rollouts: Iterable[ScoredRollout]) -> dict[str, float]:
    """Return the quantiles of response tokens by name, interpolated; empty if no rollout has a number of tokens."""
    tokens = [one.response_tokens for one in rollouts if one.response_tokens is not None]
    if not tokens:
        return {}
    cuts = _percentiles(tokens)
    return {f"{RESPONSE_TOKENS}{name}": cuts[percent - 1] for name, (percent, _) in _QUANTILES.items()}


def by_length(rollouts: Sequence[ScoredRollout]) -> dict[str, dict[str, list[ScoredRollout]]]:
    """Return name of the split -> group -> rollouts, the shortest first.

    Splits with a single group are left out, and so are the quarters if fewer than eight rollouts have a number of
    tokens. Rollouts without one are in no group. Rollouts with equal numbers are in the same quarter.
    """
    known = [(one.response_tokens, one) for one in rollouts if one.response_tokens is not None]
    if not known:
        return {}
    cuts = _percentiles([tokens for tokens, _ in known])
    quarters = [cuts[24], cuts[49], cuts[74]]
    splits: dict[str, dict[int, list[tuple[int, ScoredRollout]]]] = {BUCKETS: {}, QUARTERS: {}}
    for tokens, one in sorted(known, key=lambda pair: pair[0]):
        splits[BUCKETS].setdefault(bisect_right(_BUCKET_STARTS, tokens), []).append((tokens, one))
        splits[QUARTERS].setdefault(bisect_left(quarters, tokens), []).append((tokens, one))
    return {
        name: {_name(name, place, group): [one for _, one in group] for place, group in groups.items()}
        for name, groups in splits.items()
        if len(groups) > 1 and (name == BUCKETS or len(known) >= _FEWEST)
    }


def _name(split: str, place: int, group: Sequence[tuple[int, ScoredRollout]]) -> str:
    if split == BUCKETS:
        return BUCKET_NAMES[place]
    return f"{place + 1} ({group[0][0]} to {group[-1][0]})"


def _percentiles(tokens: Sequence[int]) -> list[float]:
    """Return the 99 percentiles of at least one number, interpolated between neighbours."""
    return statistics.quantiles(tokens, n=100, method="inclusive") if len(tokens) > 1 else [float(tokens[0])] * 99
