"""Find the token ids of a rollout that the model wrote: the mask of a whole trajectory, and its turns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.agent.trajectory import Sample


@dataclass(frozen=True, slots=True)
class Spans:
    """Token ids after a prompt, with a mask of those that the model sampled.

    Attributes:
        ids: Ids up to the last one that the model sampled.
        mask: 1 for each id that the model sampled, including the ends of turns; else 0.
        turns: Number of sampled ids of each turn, without turns that have no sampled id.
    """

    ids: list[int]
    mask: list[int]
    turns: list[int]


def only_sample(row: Mapping[str, Any]) -> tuple[Sample | None, str]:
    """Return the single token sequence of a row of `rollouts` and "", or None and why the row cannot be used.

    Reasons are `no_ids` (a rollout in text mode, or a failed one) and `several_contexts` (several token sequences, so
    there is no single prompt and mask).
    """
    samples = [Sample.from_row(item) for item in row["samples"] or ()]
    if len(samples) > 1:
        return None, "several_contexts"
    if not samples or ORIGIN_SAMPLED not in samples[0].origins:
        return None, "no_ids"
    return samples[0], ""


def spans_of_sample(sample: Sample) -> Spans:
    """Return all turns of a token sequence as one trajectory."""
    mask = [int(origin == ORIGIN_SAMPLED) for origin in sample.origins]
    end = len(mask) - mask[::-1].index(1) if 1 in mask else 0
    bounds = [*sample.turn_starts, end]
    turns = [sum(mask[start:stop]) for start, stop in itertools.pairwise(bounds)]
    return Spans(sample.ids[:end], mask[:end], [length for length in turns if length])


def starts_of_turns(sample: Sample) -> list[int]:
    """Return the number of ids before each turn in which the model sampled at least one id."""
    bounds = [*sample.turn_starts, len(sample.origins)]
    return [start for start, stop in itertools.pairwise(bounds) if ORIGIN_SAMPLED in sample.origins[start:stop]]
