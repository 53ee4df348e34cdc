"""Define the base class of reward rules, and the types of its arguments and results.

The module has few imports, because rules run inside the engines' environments. Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Dialect, Segment
from treadle.agent.dialects.tags import TagDialect, tokenise
from treadle.core.answers.extraction import BY_CANDIDATE
from treadle.core.answers.score import Score
from treadle.core.registry import Entry

if TYPE_CHECKING:
    from treadle.core.llm.types import EndpointState

FAILED = "failed"
"""Status of an item whose rollout failed because of infrastructure, not because of the policy."""

CONTEXT_FULL = "context_full"
"""Status of an item whose context had no room for another turn."""

ANSWERED = "answered"
"""Status of an item that ended with its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupItem:
    """One trajectory of a group, as rules see it.

    Counts come from the call ledger and from token ids, never from the text.

    Attributes:
        segments: The assistant turn in typed segments; their offsets do not matter.
        tool_calls: Number of executed calls, including failed ones, excluding refused ones.
        tool_failures: Number of executed calls that failed.
        web_misses: Number of calls that the replayed web record could not answer.
        model_tokens: Number of tokens that the model wrote.
        total_tokens: Number of tokens after the first prompt, including tool results.
        status: How the rollout ended; see `treadle.agent.trajectory.STATUSES`.
        num_turns: Number of turns of the model in the token ids.
        turn_rewards: Reward of each turn from the environment; None for a turn without one.
        parts: Name -> number that the environment reports about the rollout, such as the number of plans.
    """

    segments: tuple[Segment, ...]
    tool_calls: int
    model_tokens: int
    total_tokens: int
    status: str
    tool_failures: int = 0
    web_misses: int = 0
    num_turns: int = 1
    turn_rewards: tuple[float | None, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def was_played(self) -> bool:
        """False if infrastructure failed, or if the prompt left no room for a turn; such an item has no reward."""
        return self.status != FAILED and not (self.status == CONTEXT_FULL and not self.num_turns)

    @property
    def gave_answer(self) -> bool:
        """True if the rollout ended with its answer, or has a candidate that counts as its answer, as in evaluation."""
        return self.status == ANSWERED or self.parts.get(BY_CANDIDATE, 0.0) > 0

    @classmethod
    def from_text(cls, text: str, *, status: str = ANSWERED, dialect: TagDialect, **counts: Any) -> GroupItem:
        """Build an item from flat text alone; every well-formed result block counts as a tool result."""
        known = {"tool_calls": 0, "model_tokens": 0, "total_tokens": 0, **counts}
        return cls(segments=tuple(tokenise(text, dialect)), status=status, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardGroup:
    """All trajectories of one task that were not lost to infrastructure, with the verdict on each.

    Attributes:
        task: The task, with its gold answers, choices, rule and hidden payload.
        items: The trajectories.
        predictions: Extracted answer of each item; empty if there is none.
        scores: Verdict of the run's scorer on each item; its `score` is None if the answer was not decided.
        has_answers: True if the verdicts compare answers with gold answers; False if an environment or a tool gave
            them.
        dialect: How the model writes its turns.
        phase: Number of the phase, from 1.
        step: Number of the step in the phase, from 1; 0 in a validation, whose groups have one trajectory.
        num_steps: Number of steps of the phase.
    """

    task: Task
    items: Sequence[GroupItem]
    predictions: Sequence[str]
    scores: Sequence[Score]
    has_answers: bool
    dialect: Dialect
    phase: int = 1
    step: int = 1
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one item by a rule.

    Attributes:
        total: The reward; None leaves the item out of all means and gives it no advantage.
        parts: Name -> value of each part of the reward, with names from the rule's `PARTS`; None for a missing part.
        notes: Short codes that explain the reward, such as those of broken rules. They are stored and shown, so they
            must not quote anything hidden, such as the payload.
    """

    total: float | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class RewardRule(Entry):
    """Settings of a reward rule, and the rule itself.

    Derive a class, declare typed keys and `PARTS`, and implement `rewards`.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    PARTS: ClassVar[Mapping[str, str]] = {}
    """Name -> description of the parts of a reward, the most telling ones first: curves show the first that change."""
    COMPARES_GROUP: ClassVar[bool] = True
    """Whether the reward of an item depends on other items of its group; False allows over-sampling."""

    type: str = "efficiency"
    """Type of the rule: `efficiency`, `outcome`, `em`, `planning`, `judge`, `my_file.py:Class` for a class in a file
    next to the configuration, `package.module:Class`, or the name of an entry point."""

    @contextlib.contextmanager
    def open(self, folder: Path | None = None) -> Iterator[None]:
        """Keep resources of the rule, such as connections, open while a process uses it.

        `folder` is for results that a resumed training should not pay for again; processes of one training share it,
        and it may not exist yet. It is None outside of trainings.
        """
        yield

    def rewards(self, group: RewardGroup) -> list[Reward]:
        """Return the rewards of a group's items, in their order.

        It is called outside event loops, by several threads at once. Text of the model is hostile: never evaluate it.
        """
        raise NotImplementedError

    def servers(self) -> Sequence[tuple[str, EndpointState]]:
        """Return model and state of each model server that the rule uses, to be shown to the user.

        Called by any thread inside `open`.
        """
        return ()

    def check(self, where: str) -> None:
        """Raise ConfigError for settings that cannot train; `where` is the instance, such as `1/rl@phase-2`.

        It is called before the run and before training, with the values of the curriculum filled in.
        """

    def filled(self, **values: float) -> Self:
        """Return a copy of the rule in which these values replace keys that are None; unknown names are ignored."""
        own = type(self).model_fields
        missing = {name: value for name, value in values.items() if name in own and getattr(self, name) is None}
        return self.model_copy(update=missing)

    @property
    def described(self) -> str:
        """Readable text with the type, and the keys that differ from their defaults."""
        hidden = Entry.model_fields.keys()
        given = [
            f"{name} {getattr(self, name)}"
            for name, key in type(self).model_fields.items()
            if name not in hidden and getattr(self, name) != key.get_default(call_default_factory=True)
        ]
        return self.type + (f" ({', '.join(given)})" if given else "")
