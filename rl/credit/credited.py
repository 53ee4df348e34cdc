"""Apply a credit rule to a rewarded group.

The rule gets the text of each turn of each trajectory; the parts that it returns are added to those of the rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treadle.agent.contract import Task
from treadle.agent.dialects.base import FRAME, Segment
from treadle.agent.trajectory import Trajectory, by_sample
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.rl.credit.base import CreditGroup, CreditRule, TurnText, turn_credits
from treadle.rl.groups.group import Group
from treadle.rl.rewards.rewarded import RewardedItem


@dataclass(frozen=True, slots=True)
class CreditedItems:
    """Trajectories of a group after the credit rule.

    Attributes:
        advantages: Advantage of each turn of each trajectory.
        rewards: Reward of each trajectory; its parts include those that the credit rule returned.
    """

    advantages: list[list[float]]
    rewards: list[RewardedItem]


def credit_items(
    rule: CreditRule, group: Group, task: Task, rewards: Sequence[RewardedItem], *, step: int, num_steps: int
) -> CreditedItems:
    """Return the advantages that a rule gives to a rewarded group; `task` must have its payload.

    Raises what `turn_credits` raises.
    """
    known = CreditGroup(
        task=task,
        items=group.items,
        rewards=rewards,
        turns=[turn_texts(made.trajectory) for made in group.trajectories],
        step=step,
        num_steps=num_steps,
    )
    made = turn_credits(rule, known)
    return CreditedItems(
        [advantages for advantages, _ in made],
        [replace(reward, parts={**reward.parts, **parts}) for reward, (_, parts) in zip(rewards, made, strict=True)],
    )


def turn_texts(trajectory: Trajectory) -> list[TurnText]:
    """Return the text of each turn of a trajectory; a segment belongs to the turn in which its first token id lies.

    The trajectory must have token ids.
    """
    texts = []
    parts = by_sample(trajectory.segments)
    for sample, segments in zip(trajectory.samples, [*parts, *[[]] * len(trajectory.samples)], strict=False):
        for place, start in enumerate(sample.turn_starts):
            end = sample.turn_starts[place + 1] if place + 1 < len(sample.turn_starts) else len(sample.ids)
            own = [segment for segment in segments if start <= segment.start < end]
            texts.append(TurnText(_text(own, written=True), _text(own, written=False)))
    return texts


def _text(segments: Sequence[Segment], *, written: bool) -> str:
    """Return what the model wrote in these segments if `written`, else what the environment wrote.

    Segments of the chat template (kind `FRAME`) are left out.
    """
    kept = (segment for segment in segments if segment.kind != FRAME and (segment.kind not in SYSTEM_KINDS) == written)
    return "".join(segment.text for segment in kept)
