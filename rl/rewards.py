"""Rewards of a rollout group: a pure function of its items and the effective sigmas.

`R = C · f_tool · f_len - penalty · (format broken)` (arXiv 2601.06860): C is the correctness by the one scorer of
answers, the factors compare an item's calls and length with its group's. Light to import, because it runs inside the
engines' environments. No text of a model is ever evaluated. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from treadle.agent.protocol import TOOL_PROTOCOL, Protocol, Segment, render, tokenise
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import Score, score_answer
from treadle.core.errors import ConfigError, EngineError
from treadle.rl.format_check import FormatMode, format_reasons

FAILED = "failed"
"""Status of an item that infrastructure, not the policy, kept from being made."""

_ANSWERED = "answered"
_UNFINISHED = Score(0.0, 0.0, 0.0, 0.0, False, "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupItem:
    """One trajectory of a group, as far as a reward looks at it. Counts come from the ledger and from ids, never from
    the text.

    Attributes:
        segments: The assistant turn in typed segments; their offsets do not matter.
        tool_calls: Executed calls, failed ones included, refused ones not.
        tool_failures: Of them, those that failed.
        web_misses: Of these, those that a replay of the web could not answer.
        model_tokens: Tokens that the model wrote.
        total_tokens: The same with tool results.
        status: How the rollout ended; see `treadle.agent.rollout.STATUSES`.
        session: Number within the group, from 0.
        branch_parent: Session that it branched off from; None where it began with the question.
        branch_depth: Branches between it and the question.
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
    def from_text(
        cls, text: str, *, status: str = _ANSWERED, protocol: Protocol = TOOL_PROTOCOL, **counts: int
    ) -> GroupItem:
        """From flat text of which nothing else is known: every well-formed result block counts as the system's."""
        known = {"tool_calls": 0, "model_tokens": 0, "total_tokens": 0, **counts}
        return cls(segments=tuple(tokenise(text, protocol)), status=status, **known)

    @property
    def text(self) -> str:
        """The assistant turn, results included."""
        return render(self.segments)

    def as_json(self) -> dict[str, Any]:
        """The item as JSON-able data; `from_json` reads it back."""
        return {**asdict(self), "segments": [[part.kind, part.text] for part in self.segments]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupItem:
        """Read `as_json` back; offsets of segments are not kept."""
        return cls(**{**data, "segments": tuple(Segment(kind, text, 0, 0) for kind, text in data["segments"])})


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
    """The reward of one item with all that it was made of.

    Attributes:
        reward: R. For an item that was not scored: the mean of the scored ones, so that its advantage is 0.
        scored: False where infrastructure lost the trajectory; it then counts in no mean.
        correctness: C in [0, 1].
        f_tool, f_len: Efficiency factors, each within (0, scale).
        f_format: 0, or minus the penalty.
        format_reasons: Codes of the broken rules, in the order of the check.
        answer: The prediction, as found.
        scorer: The rule of answers that decided.
        length: Tokens, by `length_scope`.
        tool_mean, length_mean, length_std: Of the scored items of the group; the deviation is the population's.
        sigma_tool, sigma_length: Those in effect.
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

    def as_json(self) -> dict[str, Any]:
        """All components as JSON-able data, for dumps and logs."""
        return {**asdict(self), "format_reasons": list(self.format_reasons)}


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
    protocol: Protocol = TOOL_PROTOCOL,
) -> list[Reward]:
    """Rewards of all trajectories of one question, in the order of the items; permuting the items permutes them.

    `gold`: accepted answers; the best one counts. `checker` adds computer algebra to math, as in the stage `scores`.
    Raises ConfigError for an unknown domain, and EngineError where algebra gave no verdict.
    """
    group = _Group.of([item for item in items if item.status != FAILED], options.length_scope)

    def reward(item: GroupItem) -> Reward:
        if item.status == FAILED:
            return group.reward(item, "", _UNFINISHED, (), sigma_tool, sigma_length, options)
        answer, score = score_item(item, gold, domain, choices=choices, checker=checker)
        reasons = format_reasons(item.segments, options.format_mode, protocol)
        return group.reward(item, answer, score, reasons, sigma_tool, sigma_length, options)

    return _with_neutral([reward(item) for item in items])


def score_item(
    item: GroupItem,
    gold: Sequence[str],
    domain: str,
    *,
    choices: Sequence[str] = (),
    checker: Checker | None = None,
) -> tuple[str, Score]:
    """Prediction and verdict, as the stage `scores` finds them in the same rollout; raises EngineError without one."""
    answer = extract_prediction({"kind": part.kind, "text": part.text} for part in item.segments)
    if item.status != _ANSWERED:
        return answer, _UNFINISHED
    score = score_answer(answer, gold, choices, domain, checker=checker)
    if score.score is None:
        raise EngineError(f"an answer of a rollout could not be compared with the gold answers: {score.error}")
    return answer, score


@contextlib.contextmanager
def open_checker(symbolic: bool) -> Iterator[Checker | None]:
    """Computer algebra in confined processes of its own, where it is wanted; raises ConfigError where it is missing."""
    if not symbolic:
        yield None
        return
    from treadle.core.answers.symbolic import SymbolicChecker

    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError("rl.symbolic needs the package math-verify beside the engine; set rl.symbolic = false")
    with SymbolicChecker() as checker:
        yield checker


@dataclass(frozen=True, slots=True)
class _Group:
    """What the scored items of a group have in common."""

    tool_mean: float
    length_mean: float
    length_std: float

    @classmethod
    def of(cls, items: Sequence[GroupItem], length_scope: str) -> _Group:
        count = len(items)
        if not count:
            return cls(0.0, 0.0, 0.0)
        lengths = [_length(item, length_scope) for item in items]
        total = sum(lengths)
        # Whole numbers up to the root, so that neither the order of the items nor rounding decides anything.
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
            tool_mean=self.tool_mean,
            length_mean=self.length_mean,
            length_std=self.length_std,
            sigma_tool=sigma_tool,
            sigma_length=sigma_length,
            web_misses=item.web_misses,
        )


def _length(item: GroupItem, scope: str) -> int:
    return item.model_tokens if scope == "model" else item.total_tokens


def _factor(scale: float, x: float) -> float:
    """scale / (1 + e^x), without overflow on either side."""
    if x <= 0:
        return scale / (1.0 + math.exp(x))
    decayed = math.exp(-x)
    return scale * decayed / (1.0 + decayed)


def _with_neutral(rewards: list[Reward]) -> list[Reward]:
    """Give items that were not scored the mean of those that were."""
    scored = [reward.reward for reward in rewards if reward.scored]
    if len(scored) == len(rewards):
        return rewards
    neutral = math.fsum(scored) / len(scored) if scored else 0.0
    return [reward if reward.scored else replace(reward, reward=neutral) for reward in rewards]
