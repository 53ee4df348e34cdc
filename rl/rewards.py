"""Compute the rewards of a rollout group: a pure function of its items and the effective sigmas.

`R = C · f_tool · f_len - penalty · (format broken)` (arXiv 2601.06860): C is the correctness by the shared answer
scorer, and the factors compare an item's calls and length with its group's. Few imports, because this runs inside the
engines' environments. Model text is never evaluated. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from treadle.agent.dialects.base import Dialect, Segment
from treadle.agent.dialects.tags import TagDialect, tokenise
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import Score, score_answer
from treadle.core.errors import EngineError
from treadle.rl.format_check import FormatMode, format_reasons

FAILED = "failed"
"""Status of an item that infrastructure, not the policy, prevented."""

_ANSWERED = "answered"
_UNFINISHED = Score(0.0, False, "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupItem:
    """The inputs of the reward for one trajectory of a group.

    Counts come from the call ledger and from token ids, never from the text.

    Attributes:
        segments: The assistant turn in typed segments; their offsets do not matter.
        tool_calls: Number of executed calls, including failed ones, excluding refused ones.
        tool_failures: Number of executed calls that failed.
        web_misses: Number of calls that the replayed web record could not answer.
        model_tokens: Number of tokens that the model wrote.
        total_tokens: Number of tokens, tool results included.
        status: How the rollout ended; see `treadle.agent.rollout.STATUSES`.
    """

    segments: tuple[Segment, ...]
    tool_calls: int
    model_tokens: int
    total_tokens: int
    status: str
    tool_failures: int = 0
    web_misses: int = 0
    session: int = 0
    branch_parent: int | None = None
    branch_depth: int = 0

    @classmethod
    def from_text(cls, text: str, *, status: str = _ANSWERED, dialect: TagDialect, **counts: Any) -> GroupItem:
        """Build an item from flat text alone; every well-formed result block counts as a tool result."""
        known = {"tool_calls": 0, "model_tokens": 0, "total_tokens": 0, **counts}
        return cls(segments=tuple(tokenise(text, dialect)), status=status, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    """Constants of the reward; documented as keys of `treadle.rl.config.RlOptions`."""

    scale: float = 2.0
    format_mode: FormatMode = "strict"
    format_penalty: float = 1.0
    flat_penalty: bool = False
    length_scope: Literal["model", "all"] = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The reward of one item with all its components.

    Attributes:
        reward: R. An item that was not scored gets the mean of the scored ones, so that its advantage is 0.
        scored: False if infrastructure lost the trajectory; it is then excluded from all means.
        correctness: C in [0, 1].
        f_tool, f_len: Efficiency factors, each within (0, scale).
        f_format: 0, or minus the penalty.
        format_reasons: Codes of the broken rules, in the order of the check.
        answer: The extracted prediction.
        scorer: The answer rule that was used.
        length: Number of tokens, by `length_scope`.
        tool_mean, length_mean, length_std: Statistics of the group's scored items; `length_std` is the population's.
        sigma_tool, sigma_length: The sigmas in effect.
    """

    reward: float
    scored: bool
    correctness: float
    f_tool: float
    f_len: float
    f_format: float
    format_ok: bool
    format_reasons: tuple[str, ...]
    answer: str
    scorer: str
    status: str
    tool_calls: int
    tool_failures: int
    length: int
    tool_mean: float
    length_mean: float
    length_std: float
    sigma_tool: float
    sigma_length: float
    web_misses: int = 0


def group_rewards(
    items: Sequence[GroupItem],
    gold: Sequence[str],
    domain: str,
    sigma_tool: float,
    sigma_length: float,
    options: RewardOptions = RewardOptions(),
    *,
    choices: Sequence[str] = (),
    checker: Checker | None = None,
    dialect: Dialect,
) -> list[Reward]:
    """Return the rewards of all trajectories of one question, in the order of the items, which does not affect them.

    `gold`: accepted answers; the best match counts. `checker` adds computer algebra to math, as in the stage `scores`.
    Only a dialect of tags has a format to break. Raises ConfigError for an unknown domain, and EngineError if computer
    algebra gave no verdict.
    """
    answers = [score_item(item, gold, domain, choices=choices, checker=checker) for item in items]
    return efficiency_rewards(items, answers, sigma_tool, sigma_length, options, dialect=dialect)


def efficiency_rewards(
    items: Sequence[GroupItem],
    answers: Sequence[tuple[str, Score]],
    sigma_tool: float,
    sigma_length: float,
    options: RewardOptions = RewardOptions(),
    *,
    dialect: Dialect,
) -> list[Reward]:
    """Return the rewards of the trajectories of one question, given the prediction and verdict of each item.

    Raises EngineError for an item without a verdict.
    """
    group = _GroupStatistics.of([item for item in items if item.status != FAILED], options.length_scope)

    def reward(item: GroupItem, answer: str, score: Score) -> Reward:
        if item.status == FAILED:
            return group.reward(item, "", _UNFINISHED, (), sigma_tool, sigma_length, options)
        if score.score is None:
            raise EngineError(f"an answer of a rollout could not be compared with the gold answers: {score.error}")
        reasons: tuple[str, ...] = ()
        if isinstance(dialect, TagDialect):
            reasons = format_reasons(item.segments, dialect, options.format_mode)
        return group.reward(item, answer, score, reasons, sigma_tool, sigma_length, options)

    return _fill_unscored([reward(item, *answer) for item, answer in zip(items, answers, strict=True)])


def outcome_rewards(
    items: Sequence[GroupItem], scores: Sequence[Score], options: RewardOptions = RewardOptions()
) -> list[Reward]:
    """Return the rewards that the environment gave, in the order of the items.

    `scores` are its verdicts, one per item; see `treadle.environments.scorers`. An item without one is left out of the
    group's mean: a missing reward is never 0. The factors and penalties of `group_rewards` do not apply. Correctness is
    the reward, limited to [0, 1].
    """
    group = _GroupStatistics.of([item for item in items if item.status != FAILED], options.length_scope)

    def reward(item: GroupItem, score: Score) -> Reward:
        value = score.score or 0.0
        shown = replace(score, score=min(max(value, 0.0), 1.0))
        made = group.reward(item, "", shown, (), 0.0, 0.0, options)
        known = item.status != FAILED and score.score is not None
        return replace(made, reward=value, scored=known, f_tool=1.0, f_len=1.0)

    return _fill_unscored([reward(item, score) for item, score in zip(items, scores, strict=True)])


def score_item(
    item: GroupItem,
    gold: Sequence[str],
    domain: str,
    *,
    choices: Sequence[str] = (),
    checker: Checker | None = None,
) -> tuple[str, Score]:
    """Return prediction and verdict, as the stage `scores` does."""
    answer = extract_prediction({"kind": part.kind, "text": part.text} for part in item.segments)
    if item.status != _ANSWERED:
        return answer, _UNFINISHED
    return answer, score_answer(answer, gold, choices, domain, checker=checker)


@dataclass(frozen=True, slots=True)
class _GroupStatistics:
    """Statistics over the scored items of a group."""

    tool_mean: float
    length_mean: float
    length_std: float

    @classmethod
    def of(cls, items: Sequence[GroupItem], length_scope: str) -> _GroupStatistics:
        count = len(items)
        if not count:
            return cls(0.0, 0.0, 0.0)
        lengths = [_length(item, length_scope) for item in items]
        total = sum(lengths)
        # Integers up to the square root, so that neither the order of the items nor rounding affects the result.
        spread = count * sum(length * length for length in lengths) - total * total
        return cls(sum(item.tool_calls for item in items) / count, total / count, math.sqrt(spread) / count)

    def reward(
        self,
        item: GroupItem,
        answer: str,
        score: Score,
        reasons: tuple[str, ...],
        sigma_tool: float,
        sigma_length: float,
        options: RewardOptions,
    ) -> Reward:
        length = _length(item, options.length_scope)
        z = (length - self.length_mean) / self.length_std if self.length_std else 0.0
        f_tool = _factor(options.scale, sigma_tool * (item.tool_calls - self.tool_mean))
        f_len = _factor(options.scale, sigma_length * z)
        f_format = -options.format_penalty if reasons else 0.0
        correctness = score.score or 0.0
        efficient = 0.0 if reasons and options.flat_penalty else correctness * f_tool * f_len
        return Reward(
            reward=efficient + f_format,
            scored=item.status != FAILED,
            correctness=correctness,
            f_tool=f_tool,
            f_len=f_len,
            f_format=f_format,
            format_ok=not reasons and item.status != FAILED,
            format_reasons=reasons,
            answer=answer,
            scorer=score.scorer,
            status=item.status,
            tool_calls=item.tool_calls,
            tool_failures=item.tool_failures,
            length=length,
            **asdict(self),
            sigma_tool=sigma_tool,
            sigma_length=sigma_length,
            web_misses=item.web_misses,
        )


def _length(item: GroupItem, scope: str) -> int:
    return item.model_tokens if scope == "model" else item.total_tokens


def _factor(scale: float, x: float) -> float:
    """Return scale / (1 + e^x), without overflow on either side."""
    if x <= 0:
        return scale / (1.0 + math.exp(x))
    decayed = math.exp(-x)
    return scale * decayed / (1.0 + decayed)


def _fill_unscored(rewards: list[Reward]) -> list[Reward]:
    """Set the reward of items that were not scored to the mean of those that were."""
    scored = [reward.reward for reward in rewards if reward.scored]
    if len(scored) == len(rewards):
        return rewards
    neutral = math.fsum(scored) / len(scored) if scored else 0.0
    return [reward if reward.scored else replace(reward, reward=neutral) for reward in rewards]
