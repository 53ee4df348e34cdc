"""Rewards of a rollout group: a pure function of its items and the effective sigmas.

`R = C · f_tool · f_len - penalty · (format broken)` (arXiv 2601.06860): C is the correctness by the one scorer of
answers, the factors compare an item's calls and length with its group's. Light to import, because it runs inside the
engines' environments. No text of a model is ever evaluated. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from treadle.agent.protocol import TOOL_PROTOCOL, Protocol, Segment, render, tokenise
from treadle.core.answers.extraction import extract_prediction
from treadle.core.answers.math_equal import Checker
from treadle.core.answers.score import Score, score_answer
from treadle.core.errors import EngineError
from treadle.rl.format_check import format_reasons

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    """Constants of the reward; documented as keys of `treadle.rl.config.RlOptions`."""

    scale: float = 2.0
    format_mode: Literal["strict", "loose"] = "strict"
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
    raise NotImplementedError
