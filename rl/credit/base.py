"""Define what a credit rule is, and check what it returns. Documented in docs/behaviour/rewards.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import ConfigDict

from treadle.agent.contract import Task
from treadle.core.errors import EngineError
from treadle.core.registry import Entry
from treadle.core.untrusted.concealment import user_code
from treadle.rl.rewards.base import GroupItem
from treadle.rl.rewards.rewarded import RewardedItem, is_usable, shown

Advantage = float | Sequence[float]
"""Advantage of all tokens of a trajectory, or of the tokens of each of its turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditGroup:
    """All trajectories of one task with their rewards.

    Attributes:
        task: The task.
        items: The trajectories; `num_turns` and `turn_rewards` are those of their turns.
        rewards: Reward of each item; those with `scored` false have the mean of the others.
        step: Number of the step in the phase, from 1.
        num_steps: Number of steps of the phase.
    """

    task: Task
    items: Sequence[GroupItem]
    rewards: Sequence[RewardedItem]
    step: int = 1
    num_steps: int = 1


class CreditRule(Entry):
    """Settings of a credit rule, and the rule itself.

    Derive a class, declare typed keys, and implement `advantages`.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    type: str = "outcome"
    """Type of the rule: `outcome`, `my_file.py:Class` for a class in a file next to the configuration,
    `package.module:Class`, or the name of an entry point."""

    def advantages(self, group: CreditGroup) -> Sequence[Advantage]:
        """Return the advantage of each item: a number, or one number for each of its `num_turns` turns."""
        raise NotImplementedError(f"{type(self).__name__} needs a method advantages(group)")


def turn_advantages(rule: CreditRule, group: CreditGroup) -> list[list[float]]:
    """Return the advantage of each turn of each item; 0 for items that were not scored.

    Raises EngineError, naming rule and task, if the rule raises or returns something else than a number for each item,
    or one for each of its turns.
    """
    about = f"the credit rule {rule.type} failed on task {group.task.key}:"
    try:
        with user_code(rule, group.task.payload):
            made = [list(value) if isinstance(value, Iterable) else value for value in rule.advantages(group)]
    except Exception as error:  # any error that a user's rule raises
        raise EngineError(f"{about} it raised {type(error).__name__}: {error}") from error
    if len(made) != len(group.items):
        raise EngineError(f"{about} it returned {len(made):,} advantages for {len(group.items):,} rollouts")
    turns = []
    for item, reward, value in zip(group.items, group.rewards, made, strict=True):
        of_turns = value if isinstance(value, list) else [value] * item.num_turns
        if len(of_turns) != item.num_turns:
            raise EngineError(f"{about} it returned {len(of_turns):,} advantages for {item.num_turns:,} turns")
        for one in of_turns:
            if not is_usable(one):
                raise EngineError(f"{about} it returned {shown(one)}, not a number up to 1e9")
        turns.append([float(one) if reward.scored else 0.0 for one in of_turns])
    return turns


def token_advantages(of_turns: Sequence[float], turn_starts: Sequence[int], num_ids: int) -> list[float]:
    """Return the advantage of each id after the prompt: that of the newest turn that began at or before it.

    `turn_starts` are the ascending numbers of ids before each turn. Ids before the first turn get 0.
    """
    values = [0.0] * num_ids
    for place, (start, value) in enumerate(zip(turn_starts, of_turns, strict=True)):
        end = turn_starts[place + 1] if place + 1 < len(turn_starts) else num_ids
        values[start:end] = [value] * max(0, min(end, num_ids) - start)
    return values[:num_ids]
