"""Rollouts of a step as rows of the table `rl_rollouts`, in files that appear whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from treadle.rl.groups import Group
from treadle.rl.rewards import Reward


def rollout_rows(
    step: int, group: Group, rewards: Sequence[Reward], *, dataset: str = "", domain: str = ""
) -> list[dict[str, Any]]:
    """One row per trajectory with the columns of `treadle.core.schemas.RL_ROLLOUTS`, by sessions."""
    return [
        {
            "step": step,
            "group": group.group_id,
            "session": made.session,
            "question_key": group.question.key,
            "dataset": dataset or group.question.dataset,
            "domain": domain or group.question.domain,
            "input": group.question.user_message,
            "output": made.trajectory.text,
            **_reward_columns(reward),
            "prediction": reward.answer,
            "tool_calls": reward.tool_calls,
            "tool_failures": reward.tool_failures,
            "model_tokens": sum(made.env_mask),
            "total_tokens": len(made.completion_ids),
            "finish": made.trajectory.status,
            "branch_parent": made.branch_parent,
            "branch_depth": made.branch_depth,
            "seed": made.seed,
        }
        for made, reward in zip(group.trajectories, rewards, strict=True)
    ]


def _reward_columns(reward: Reward) -> dict[str, Any]:
    parts = ("reward", "correctness", "f_tool", "f_len", "f_format", "tool_mean", "length_mean", "length_std")
    values = {name: getattr(reward, name) if reward.scored else None for name in parts}
    return {**values, "format_reason": " ".join(reward.format_reasons)}


def step_path(folder: Path, step: int) -> Path:
    """File of the rollouts of a step."""
    return folder / f"step-{step:06d}.jsonl"


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines; the file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    unfinished.rename(path)
