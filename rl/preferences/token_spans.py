"""Find what the model wrote in the token ids of a rollout: the mask of a whole trajectory, and its turns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.agent.trajectory import Sample


@dataclass(frozen=True, slots=True)
class Spans:
    """Token ids after a prompt, with what the model sampled of them.

    Attributes:
        ids: Ids up to the last one that the model sampled.
        mask: 1 for each id that it sampled, the ends of turns included; else 0.
        turns: Numbers of sampled ids of the turns that have any.
    """

    ids: list[int]
    mask: list[int]
    turns: list[int]


def only_sample(row: Mapping[str, Any]) -> tuple[Sample | None, str]:
    """Return the token sequence of a row of `rollouts`; else None and why it cannot be used.

    Reasons are `no_ids` (text mode, or failed) and `several_contexts`, of which no single prompt and mask exist.
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
    """Return the number of ids before each turn in which the model sampled at least one."""
    bounds = [*sample.turn_starts, len(sample.origins)]
    return [start for start, stop in itertools.pairwise(bounds) if ORIGIN_SAMPLED in sample.origins[start:stop]]
