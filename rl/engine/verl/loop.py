"""Run one session of a group as verl's agent loop, which verl loads from the YAML at `agent_loop_config_path`.

Contract of verl 0.9: `run` gets the row's columns with `uid`, `session_id` and `global_steps`, and returns ids, mask
and log-probabilities of one trajectory; if `reward_score` is set, verl does not call a reward manager. See
docs/guides/verl.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from treadle.rl.credit.base import token_advantages, token_credits
from treadle.rl.engine.verl.host import RewardedTrajectory, host_of
from treadle.rl.engine.verl.sample import Sample
from treadle.rl.engine.verl.turn_credit import CreditedOutput
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.verl.advantages import OUTCOME_REWARD

_LOGGED = ("tool_calls", "tool_failures", "length")


class TreadleLoop(AgentLoopBase):  # type: ignore[misc]
    """One session of a group; the host that the sessions of a process share does all the work."""

    def __init__(self, *args: Any, job: str, **kwargs: Any) -> None:
        """Store the path of the training's job; the other arguments are verl's."""
        super().__init__(*args, **kwargs)
        self._job = Path(job)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Join the group `uid` as session `session_id`; raise GroupFailed in all sessions if the group fails."""
        host = await host_of(self._job)
        sample = Sample.from_fields(kwargs)
        size = self.rollout_config.val_kwargs.n if sample.validates else self.rollout_config.n
        rewarded = await host.join(sample, int(kwargs["session_id"]), int(size), self.server_manager, sampling_params)
        extra_info = reward_columns(rewarded.reward, host.part_names)
        if host.credits_turns:
            extra_info[OUTCOME_REWARD] = rewarded.reward.reward
        return _output(rewarded, host.end_id, extra_info)


def _output(rewarded: RewardedTrajectory, end_id: int, extra_info: Mapping[str, float]) -> AgentLoopOutput:
    made, reward = rewarded.made, rewarded.reward
    ids, mask, logprobs = made.completion_ids, made.env_mask, made.logprobs
    if not ids:
        # verl puts the reward on the last token, so there has to be one; its mask is 0.
        ids, mask, logprobs = [end_id], [0], [0.0]
    if not reward.scored:
        mask = [0] * len(mask)
    usage = made.trajectory.usage
    fields: dict[str, Any] = dict(
        prompt_ids=made.prompt_ids,
        response_ids=ids,
        response_mask=mask,
        response_logprobs=logprobs,
        reward_score=reward.reward,
        num_turns=made.trajectory.num_turns,
        metrics=AgentLoopMetrics(generate_sequences=usage.model_seconds, tool_calls=usage.tool_seconds),
        extra_fields={
            "reward_extra_info": dict(extra_info),
            "min_global_steps": rewarded.min_version,
            "max_global_steps": rewarded.max_version,
            "turn_scores": [],
            "tool_rewards": [],
        },
    )
    if rewarded.advantages is None:
        return AgentLoopOutput(**fields)
    of_ids = token_advantages(rewarded.advantages, made.turn_starts, len(ids))
    return CreditedOutput(**fields, token_scores=token_credits(of_ids, mask))


def reward_columns(reward: RewardedItem, part_names: Sequence[str]) -> dict[str, float]:
    """Return the numbers that verl logs next to the reward; verl treats `acc` as the main one.

    verl needs the same names for every trajectory, so a missing value is nan.
    """
    parts = {name: reward.parts.get(name, math.nan) for name in part_names}
    score = math.nan if reward.score is None else reward.score
    return {"acc": score, **{name: float(getattr(reward, name)) for name in _LOGGED}, **parts}
