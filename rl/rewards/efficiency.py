"""Reward right answers with few calls and few tokens, in good format.

`R = C · f_tool · f_len - penalty · (format broken)` (arXiv 2601.06860): C is the correctness by the shared answer
scorer, and the factors compare an item's calls and length with its group's. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from pydantic import Field

from treadle.agent.dialects.tags import TagDialect
from treadle.core.answers.score import Score
from treadle.core.errors import ConfigError
from treadle.rl.rewards.base import GroupItem, Reward, RewardGroup, RewardRule
from treadle.rl.rewards.format_check import FormatMode, format_reasons
from treadle.rl.rewards.outcome import outcome_rewards


class EfficiencyReward(RewardRule):
    """Correctness times factors for calls and length, minus a penalty for broken format.

    Tasks that an environment or a tool scores get that score, without factors and penalty.
    """

    PARTS: ClassVar[Mapping[str, str]] = {
        "format_ok": "1 if the format is good, else 0",
        "f_tool": "factor for calls",
        "f_len": "factor for length",
        "f_format": "0, or minus the penalty if the format is broken",
        "tool_mean": "mean calls of the group",
        "length_mean": "mean length of the group",
        "length_std": "its population standard deviation",
        "sigma_tool": "weight of calls at the step",
        "sigma_length": "weight of length at the step",
    }

    type: str = "efficiency"
    """Type of the rule."""
    scale: float = Field(default=2.0, gt=0.0)
    """Upper bound of both efficiency factors; at 2, a factor is 1 at the group's mean."""
    format_mode: FormatMode = "strict"
    """Format check: the rules of the quality gate (`strict`), or the five rules of the program published with the
    paper (`loose`)."""
    format_penalty: float = Field(default=1.0, ge=0.0)
    """Amount subtracted from the reward of a trajectory that breaks the format."""
    flat_penalty: bool = False
    """Whether a trajectory that breaks the format scores the penalty alone, even if its answer is right. If false, a
    right answer in broken format scores about as much as a wrong answer in good format."""
    length_scope: Literal["model", "all"] = "model"
    """Tokens that count towards the length: those that the model wrote (`model`), or tool results too (`all`)."""
    sigma_tool: float | None = Field(default=None, ge=0.0)
    """Weight of tool calls in the reward: how steeply it falls per call above the group's mean. None: the value of
    the phase in `curriculum`."""
    sigma_length: float | None = Field(default=None, ge=0.0)
    """Weight of length in the reward: how steeply it falls per standard deviation above the group's mean. None: the
    value of the phase in `curriculum`."""
    sigma_decay: Literal["none", "linear"] = "none"
    """Decay of both sigmas within a phase: none, or linear down to 0 at its last step."""
    allow_zero_sigmas: bool = False
    """Whether to allow both sigmas to be 0, which rewards only right answers in good format."""

    def rewards(self, group: RewardGroup) -> list[Reward]:
        """See `RewardRule`. The format is checked only if the model writes its turns with tags (`TagDialect`)."""
        if not group.has_answers:
            return outcome_rewards(group)
        of_group = _GroupStatistics.of(group.items, self.length_scope)
        sigmas = self.sigmas_at(group.step, group.num_steps)

        def reward(item: GroupItem, score: Score) -> Reward:
            reasons: tuple[str, ...] = ()
            if isinstance(group.dialect, TagDialect):
                reasons = format_reasons(item.segments, group.dialect, self.format_mode)
            return self._reward(item, score, reasons, of_group, *sigmas)

        return [reward(item, score) for item, score in zip(group.items, group.scores, strict=True)]

    def check(self, where: str) -> None:
        """Raise ConfigError if a sigma is missing, or if both are 0 without `allow_zero_sigmas`.

        With both at 0, the factors are the same for every trajectory, and the policy learns nothing about calls and
        length.
        """
        if self.sigma_tool is None or self.sigma_length is None:
            raise ConfigError(
                f"{where}: rl.reward.sigma_tool and rl.reward.sigma_length are not set; set them, or the phase's "
                "values in curriculum"
            )
        if self.sigma_tool == 0 and self.sigma_length == 0 and not self.allow_zero_sigmas:
            raise ConfigError(
                f"{where}: sigma_tool and sigma_length are both 0, so neither calls nor length would count; "
                "raise one of them, or set rl.reward.allow_zero_sigmas = true"
            )

    def sigmas_at(self, step: int, num_steps: int) -> tuple[float, float]:
        """Return the effective (sigma_tool, sigma_length) at a step, counted from 1; 0 in a validation (step 0)."""
        if not step:
            return 0.0, 0.0
        assert self.sigma_tool is not None and self.sigma_length is not None, "check refuses it"
        factor = decay_factor(self.sigma_decay, step, num_steps)
        return self.sigma_tool * factor, self.sigma_length * factor

    def _reward(
        self,
        item: GroupItem,
        score: Score,
        reasons: tuple[str, ...],
        of_group: _GroupStatistics,
        sigma_tool: float,
        sigma_length: float,
    ) -> Reward:
        length = _length(item, self.length_scope)
        z = (length - of_group.length_mean) / of_group.length_std if of_group.length_std else 0.0
        f_tool = _factor(self.scale, sigma_tool * (item.tool_calls - of_group.tool_mean))
        f_len = _factor(self.scale, sigma_length * z)
        f_format = -self.format_penalty if reasons else 0.0
        efficient = 0.0 if reasons and self.flat_penalty else (score.score or 0.0) * f_tool * f_len
        parts = {
            "format_ok": float(not reasons),
            "f_tool": f_tool,
            "f_len": f_len,
            "f_format": f_format,
            **asdict(of_group),
            "sigma_tool": sigma_tool,
            "sigma_length": sigma_length,
        }
        return Reward(efficient + f_format, parts, reasons)


def decay_factor(decay: Literal["none", "linear"], step: int, num_steps: int) -> float:
    """Return the factor of both sigmas at step t (from 1) of T: 1 without decay, else max(0, (T - t) / (T - 1)).

    The program published with arXiv 2601.06860 lowers them to 0 within a phase in this way.
    For a phase of one step, the factor with decay is 0. Raises ValueError if `step` is below 1.
    """
    if step < 1:
        raise ValueError(f"steps are counted from 1, not {step}")
    if decay == "none":
        return 1.0
    return max(0.0, (num_steps - step) / (num_steps - 1)) if num_steps > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _GroupStatistics:
    """Statistics over the items of a group."""

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


def _length(item: GroupItem, scope: str) -> int:
    return item.model_tokens if scope == "model" else item.total_tokens


def _factor(scale: float, x: float) -> float:
    """Return scale / (1 + e^x), without overflow on either side."""
    if x <= 0:
        return scale / (1.0 + math.exp(x))
    decayed = math.exp(-x)
    return scale * decayed / (1.0 + decayed)
