"""Define the base class of credit rules, and check their results. Documented in docs/behaviour/rewards.md."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict

from treadle.agent.contract import Task
from treadle.core.errors import EndpointUnavailable, EngineError
from treadle.core.registry import Entry
from treadle.core.untrusted.concealment import user_code
from treadle.rl.rewards.base import GroupItem
from treadle.rl.rewards.rewarded import RewardedItem, is_usable, shown

if TYPE_CHECKING:
    from treadle.core.llm.types import EndpointState

Advantage = float | Sequence[float]
"""Advantage of all tokens of a trajectory, or of the tokens of each of its turns."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages of one trajectory with facts about them.

    Attributes:
        advantages: One for all tokens, or one for each turn.
        parts: Name -> value, with names from the rule's `PARTS`; stored and averaged like the parts of the reward.
    """

    advantages: Advantage
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnText:
    """Text of one turn of a trajectory.

    Attributes:
        action: What the model wrote.
        observation: What the environment wrote after it, without the control tokens of the chat template.
    """

    action: str
    observation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditGroup:
    """All trajectories of one task with their rewards.

    Attributes:
        task: The task.
        items: The trajectories, with the number and the rewards of their turns.
        rewards: Reward of each item; an item with `scored` false has the mean of the others.
        turns: Text of each turn of each item.
        step: Number of the step in the phase, from 1.
        num_steps: Number of steps of the phase.
    """

    task: Task
    items: Sequence[GroupItem]
    rewards: Sequence[RewardedItem]
    turns: Sequence[Sequence[TurnText]] = ()
    step: int = 1
    num_steps: int = 1


class CreditRule(Entry):
    """Settings of a credit rule, and the rule itself.

    Derive a class, declare typed keys, and implement `advantages`.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    PARTS: ClassVar[Mapping[str, str]] = {}
    """Name -> description of each part (a number about advantages) that the rule returns, the most telling first."""

    type: str = "outcome"
    """Type of the rule: `outcome`, `attribution`, `my_file.py:Class` for a class in a file next to the configuration,
    `package.module:Class`, or the name of an entry point."""

    def check(self, where: str) -> None:
        """Raise ConfigError for settings that cannot train; `where` is the instance, such as `1/rl@phase-2`."""

    @contextlib.contextmanager
    def open(self, folder: Path | None = None) -> Iterator[None]:
        """Keep resources of the rule, such as connections, open while a process uses it.

        `folder` is for results that a resumed training should not pay for again; processes of one training share it,
        and it may not exist yet. It is None outside of trainings.
        """
        yield

    def servers(self) -> Sequence[tuple[str, EndpointState]]:
        """Return model and state of each model server that the rule uses, to be shown to the user.

        Any thread may call it inside `open`.
        """
        return ()

    def advantages(self, group: CreditGroup) -> Sequence[Advantage | Credit]:
        """Return the advantage of each item: a number, or one number for each of its `num_turns` turns.

        It is called outside event loops, by several threads at once. Text of the model is hostile: never evaluate it.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method advantages(group)")


def turn_credits(rule: CreditRule, group: CreditGroup) -> list[tuple[list[float], dict[str, float]]]:
    """Return the advantage of each turn of each item, 0 if the item was not scored, and the parts of its credit.

    Raises EngineError, naming rule and task, if the rule raises, or if it returns anything but a number for each item
    (or for each of its turns) and declared parts. EndpointUnavailable and EngineErrors of the rule are passed on.
    """
    about = f"the credit rule {rule.type} failed on task {group.task.key}:"
    try:
        with user_code(rule, group.task.payload):
            made = [_as_credit(value) for value in rule.advantages(group)]
    except (EndpointUnavailable, EngineError):
        raise  # A service is down: the training resumes when it is back.
    except Exception as error:  # any error that a user's rule raises
        raise EngineError(f"{about} it raised {type(error).__name__}: {error}") from error
    if len(made) != len(group.items):
        raise EngineError(f"{about} it returned {len(made):,} advantages for {len(group.items):,} rollouts")
    return [
        (_of_turns(credit, item.num_turns, reward.scored, about), _parts(rule, credit, about))
        for item, reward, credit in zip(group.items, group.rewards, made, strict=True)
    ]


def _as_credit(value: Advantage | Credit) -> Credit:
    credit = value if isinstance(value, Credit) else Credit(value)
    return Credit(list(credit.advantages), credit.parts) if isinstance(credit.advantages, Iterable) else credit


def _of_turns(credit: Credit, num_turns: int, scored: bool, about: str) -> list[float]:
    value = credit.advantages
    of_turns = list(value) if isinstance(value, Sequence) else [value] * num_turns
    if len(of_turns) != num_turns:
        raise EngineError(f"{about} it returned {len(of_turns):,} advantages for {num_turns:,} turns")
    for one in of_turns:
        if not is_usable(one):
            raise EngineError(f"{about} it returned {shown(one)}, not a number up to 1e9")
    return [float(one) if scored else 0.0 for one in of_turns]


def _parts(rule: CreditRule, credit: Credit, about: str) -> dict[str, float]:
    for name, value in credit.parts.items():
        if name not in rule.PARTS:
            raise EngineError(f"{about} it returned a part that its PARTS do not declare: {', '.join(rule.PARTS)}")
        if not is_usable(value):
            raise EngineError(f"{about} its part {name} is {shown(value)}, not a number up to 1e9")
    return {name: float(value) for name, value in credit.parts.items()}


def token_advantages(of_turns: Sequence[float], turn_starts: Sequence[int], num_ids: int) -> list[float]:
    """Return the advantage of each of the `num_ids` token ids after the prompt: that of the turn that it belongs to.

    `turn_starts` has the place of the first id of each turn, ascending. A turn extends to the start of the next one, so
    tool results belong to the turn before them. Ids before the first turn get 0.
    """
    values = [0.0] * num_ids
    for place, (start, value) in enumerate(zip(turn_starts, of_turns, strict=True)):
        end = turn_starts[place + 1] if place + 1 < len(turn_starts) else num_ids
        values[start:end] = [value] * max(0, min(end, num_ids) - start)
    return values[:num_ids]


def token_credits(advantages: Sequence[float], mask: Sequence[int]) -> list[float]:
    """Return a score for each id, such that the scores from an id with mask 1 to the end add up to its advantage.

    Ids with mask 0 get the score 0.
    """
    scores, later = [0.0] * len(mask), 0.0
    for place in reversed(range(len(mask))):
        if mask[place]:
            scores[place], later = advantages[place] - later, advantages[place]
    return scores
