"""The agent loop that verl runs for each trajectory, found by the YAML at `agent_loop_config_path`.

Contract of verl 0.9: `run` gets the row's columns with `uid`, `session_id` and `global_steps`, and returns ids, mask
and log-probabilities of one trajectory; with `reward_score` set, verl asks no reward manager. docs/guides/verl.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from treadle.rl.engine.verl_host import Rewarded, Sample, host_of
from treadle.rl.rewards import Reward


class TreadleLoop(AgentLoopBase):  # type: ignore[misc]
    """One session of a group; all the work is done by the host that the sessions of a process share."""

    def __init__(self, *args: Any, job: str, **kwargs: Any) -> None:
        """`job`: path of the training's job; the rest is verl's."""
        super().__init__(*args, **kwargs)
        self._job = Path(job)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Take part in the group of `uid` as session `session_id`; raises GroupFailed, which fails the whole group."""
        host = await host_of(self._job)
        sample = Sample.from_fields(kwargs)
        size = self.rollout_config.val_kwargs.n if sample.validates else self.rollout_config.n
        rewarded = await host.attend(sample, int(kwargs["session_id"]), int(size), self.server_manager, sampling_params)
        return _output(rewarded, host.end_id)


def _output(rewarded: Rewarded, end_id: int) -> AgentLoopOutput:
    made, reward = rewarded.made, rewarded.reward
    ids, mask, logprobs = made.completion_ids, made.env_mask, made.logprobs
    if not ids:
        # verl puts the reward on the last token, so there has to be one; it is not trained on.
        ids, mask, logprobs = [end_id], [0], [0.0]
    if not reward.scored:
        mask = [0] * len(mask)
    usage = made.trajectory.usage
    return AgentLoopOutput(
        prompt_ids=made.prompt_ids,
        response_ids=ids,
        response_mask=mask,
        response_logprobs=logprobs,
        reward_score=reward.reward,
        num_turns=made.trajectory.num_turns,
        metrics=AgentLoopMetrics(generate_sequences=usage.model_seconds, tool_calls=usage.tool_seconds),
        extra_fields={
            "reward_extra_info": reward_columns(reward),
            "min_global_steps": rewarded.min_version,
            "max_global_steps": rewarded.max_version,
            "turn_scores": [],
            "tool_rewards": [],
        },
    )


def reward_columns(reward: Reward) -> dict[str, float]:
    """Numbers that verl logs beside the reward; it takes `acc` for the main one."""
    return {
        "acc": reward.correctness,
        "f_tool": reward.f_tool,
        "f_len": reward.f_len,
        "f_format": reward.f_format,
        "tool_calls": float(reward.tool_calls),
        "tool_failures": float(reward.tool_failures),
        "length": float(reward.length),
        "tool_mean": reward.tool_mean,
        "length_mean": reward.length_mean,
        "length_std": reward.length_std,
        "sigma_tool": reward.sigma_tool,
        "sigma_length": reward.sigma_length,
    }
