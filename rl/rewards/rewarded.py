"""Apply a reward rule to a group, check what it returns, and join it with the facts that figures and tables need."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real

from treadle.core.answers.score import Score
from treadle.core.errors import EndpointUnavailable, EngineError
from treadle.core.untrusted.concealment import user_code
from treadle.rl.rewards.base import GroupItem, Reward, RewardGroup, RewardRule
from treadle.rl.rewards.overlong import overlong_penalty

LARGEST_REWARD = 1e9
"""Largest absolute reward: sums of squares of larger rewards are not exact enough to be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedItem:
    """One item with its reward and the facts about it that do not depend on the rule.

    Attributes:
        reward: The reward. An item that was not scored gets the mean of the scored ones, so that its advantage is 0.
        scored: False if the trajectory was lost or its prompt was too long, or if the rule gave no reward; excluded
            from all means.
        parts: Parts of the reward by name; empty if the rule did not get the item.
        notes: Codes that explain the reward.
        score: The verdict's score, limited to [0, 1]; None without a verdict.
        answer: The extracted prediction.
        scorer: Name of the scorer that gave the verdict.
        length: Number of tokens that the model wrote.
    """

    reward: float
    scored: bool
    parts: Mapping[str, float]
    notes: tuple[str, ...]
    score: float | None
    answer: str
    scorer: str
    status: str
    tool_calls: int
    tool_failures: int
    length: int
    web_misses: int = 0


def reward_items(rule: RewardRule, group: RewardGroup, *, overlong_limit: int | None = None) -> list[RewardedItem]:
    """Return the items of a group with their rewards, in their order; the rule gets only items that were played.

    With `overlong_limit`, the maximum length in tokens, long responses are penalised (`overlong_penalty`).

    Raises EngineError, naming rule and task, if the rule raises, or if it returns anything but a `Reward` with usable
    numbers and declared parts for each item.
    """
    kept = [place for place, item in enumerate(group.items) if item.was_played]
    known = replace(
        group,
        items=[group.items[place] for place in kept],
        predictions=[group.predictions[place] for place in kept],
        scores=[group.scores[place] for place in kept],
    )
    rewards = _checked(rule, known) if kept else []
    if overlong_limit is not None:
        rewards = [
            _penalised(reward, overlong_penalty(item.total_tokens, overlong_limit))
            for reward, item in zip(rewards, known.items, strict=True)
        ]
    found = dict(zip(kept, rewards, strict=True))
    lost = Reward(None)
    made = [
        _rewarded(item, found.get(place, lost), group.predictions[place], group.scores[place])
        for place, item in enumerate(group.items)
    ]
    return _fill_unscored(made)


def _checked(rule: RewardRule, group: RewardGroup) -> list[Reward]:
    """Return the rule's rewards for a group; raise EngineError if they cannot be used."""
    about = f"the reward rule {rule.type} failed on task {group.task.key}:"
    try:
        with user_code(rule, group.task.payload):
            made = list(rule.rewards(group))
    except EndpointUnavailable:
        raise  # A service is down: the training resumes when it is back.
    except Exception as error:  # any error that a user's rule raises
        raise EngineError(f"{about} it raised {type(error).__name__}: {error}") from error
    if len(made) != len(group.items):
        raise EngineError(f"{about} it returned {len(made):,} rewards for {len(group.items):,} rollouts")
    for reward in made:
        if not isinstance(reward, Reward):
            raise EngineError(f"{about} it returned {type(reward).__name__}, not treadle.api.Reward")
        if reward.total is not None and not is_usable(reward.total):
            raise EngineError(f"{about} it returned {shown(reward.total)} as a total, not a number up to 1e9 or None")
        if any(name not in rule.PARTS for name in reward.parts):
            declared = ", ".join(rule.PARTS) or "none"
            raise EngineError(f"{about} it returned a part that its PARTS do not declare; they have: {declared}")
        for name, value in reward.parts.items():
            if value is not None and not is_usable(value, sys.float_info.max):
                raise EngineError(f"{about} its part {name} is {shown(value)}, not a finite number or None")
    return made


def _penalised(reward: Reward, penalty: float) -> Reward:
    """Return a reward with a penalty as its part `overlong`; one without a total is returned unchanged."""
    if reward.total is None:
        return reward
    return replace(reward, total=reward.total + penalty, parts={**reward.parts, "overlong": penalty})


def is_usable(value: object, largest: float = LARGEST_REWARD) -> bool:
    """Return whether a rule's value is a number whose absolute value is at most `largest`."""
    return isinstance(value, Real) and -largest <= value <= largest  # type: ignore[operator]


def shown(value: object) -> str:
    """Return a rule's value as text for a message; only its type if it is no number, as it may contain the payload."""
    return f"{value!r:.80}" if isinstance(value, Real) else f"a value of type {type(value).__name__}"


def _rewarded(item: GroupItem, reward: Reward, answer: str, score: Score) -> RewardedItem:
    return RewardedItem(
        reward=float(reward.total or 0.0),
        scored=reward.total is not None,
        parts={name: float(value) for name, value in sorted(reward.parts.items()) if value is not None},
        notes=tuple(map(str, reward.notes)),
        score=None if score.score is None else min(max(score.score, 0.0), 1.0),
        answer=answer,
        scorer=score.scorer,
        status=item.status,
        tool_calls=item.tool_calls,
        tool_failures=item.tool_failures,
        length=item.model_tokens,
        web_misses=item.web_misses,
    )


def _fill_unscored(items: list[RewardedItem]) -> list[RewardedItem]:
    """Set the reward of items that were not scored to the mean of those that were."""
    scored = [item.reward for item in items if item.scored]
    if len(scored) == len(items):
        return items
    neutral = math.fsum(scored) / len(scored) if scored else 0.0
    return [item if item.scored else replace(item, reward=neutral) for item in items]
