"""Cut a finished rollout into the token sequences that training sees: one, or one for each of its contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from treadle.agent.model_types import RolloutLimits
from treadle.agent.token_ids import ORIGIN_SAMPLED
from treadle.agent.trajectory import Sample, Trajectory
from treadle.rl.groups.session import Recorder


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One token sequence of a trajectory.

    Attributes:
        prompt_ids: Token ids before the sample's first turn, without a hint that is cut. In later samples of a
            trajectory they contain what the context shows of earlier turns.
        completion_ids: Token ids after the prompt.
        env_mask: 1 for each completion id that the model sampled, else 0.
        logprobs: Log-probability of each completion id at sampling; 0.0 if the mask is 0 or the value is unknown.
        turn_starts: Number of completion ids before each turn of the model.
        is_trained: False if the sample is left out by the limit of samples per rollout.
        hint_cut: Whether the model saw a hint that is missing in `prompt_ids`.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    env_mask: list[int]
    logprobs: list[float]
    turn_starts: list[int]
    is_trained: bool = True
    hint_cut: bool = False


def group_samples(
    trajectory: Trajectory, recorder: Recorder, limits: RolloutLimits, max_samples: int | None
) -> tuple[GroupSample, ...]:
    """Return the samples of a trajectory, each cut to the limits in tokens of the rollout.
    If there are several, each ends with the last id that the model sampled. At most `max_samples` are trained on.
    """
    samples, found, max_tokens = trajectory.samples, [], limits.max_trajectory_tokens
    # Only a prompt that left no room for a turn can be longer than the limit.
    most = None if math.isinf(limits.max_prompt_tokens) or samples[0].ids else int(limits.max_prompt_tokens)
    several = len(samples) > 1
    logprobs = recorder.logprobs_by_turn(samples) if several else [_whole(recorder, samples[0])]
    for sample, values in zip(samples, logprobs, strict=True):
        end = _end(sample) if several else len(sample.ids)
        kept = slice(end if max_tokens is None else min(end, max_tokens))
        found.append(
            GroupSample(
                prompt_ids=sample.prompt_ids_for_training[:most],
                completion_ids=sample.ids[kept],
                env_mask=[int(origin == ORIGIN_SAMPLED) for origin in sample.origins[kept]],
                logprobs=values[kept],
                turn_starts=sample.turn_starts,
                hint_cut=sample.training_prompt_ids is not None,
            )
        )
    trained = spread_over(len(found), max_samples)
    return tuple(replace(one, is_trained=number in trained) for number, one in enumerate(found))


def _whole(recorder: Recorder, sample: Sample) -> list[float]:
    return recorder.logprobs(sample.ids, sample.origins)


def _end(sample: Sample) -> int:
    return max((place + 1 for place, origin in enumerate(sample.origins) if origin == ORIGIN_SAMPLED), default=0)


def spread_over(number: int, most: int | None) -> frozenset[int]:
    """Return at most `most` of the indices below `number`, spread evenly, with the last one; all if `most` is None."""
    if most is None or number <= most:
        return frozenset(range(number))
    return frozenset((part + 1) * number // most - 1 for part in range(most))
