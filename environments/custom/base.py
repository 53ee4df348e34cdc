"""Define the base class of users' own environments: one class, one instance per rollout.

See docs/guides/environments.md. All that a class needs is in `treadle.api`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from treadle.agent.cached_units import asked_unit
from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import Message, ModelTurn, Observation, Outcome, Resume, StepContext, Task
from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.free import FreeDialect
from treadle.agent.role import RoleModel
from treadle.agent.tools.schema import ToolSchema
from treadle.core.errors import ConfigError
from treadle.core.seeds import derive_seed
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.tools.calls import EpisodeCalls
from treadle.environments.types import Resources


@dataclass(frozen=True, slots=True)
class Done:
    """End of an episode.

    Attributes:
        text: A last message, shown in the rollout; empty for none.
        reward: Reward of the last turn; None for none.
        truncated: Whether the episode ends before its task does.
    """

    text: str = ""
    reward: float | None = None
    truncated: bool = False


Reaction = str | Message | Sequence[Message] | Done | Observation
"""What `Environment.step` returns: the text of one user message, one or more messages, the end of the episode, or an
observation with call records."""


class Environment:
    """Base class of an environment. Annotated attributes with a default are settings, with their docstring as help.

    Attributes:
        version: Increase it if episodes become different; results are then made again.
        dialect: How the model's turns are read and written; free text by default.
        resume: How an interrupted episode resumes; see `treadle.agent.contract.Resume`.
        system: System message; empty for none.
        roles: Names of models under `models` that episodes may `ask`.
        schemas: Tools that the class answers itself in `step`; those of `environment.tools` are added to them. May be
            set in `reset`.
        explores: Whether `reset` needs only the payload of a task to open its state and shows `task.text` unchanged, so
            that agents can explore the state without the text, and other tasks can be made of it.
        scores_references: Whether the class scores rollouts of tasks that were made by exploration, by the reference in
            the payload: see `treadle.api.objective_of`.
        task: The task, with its hidden payload and answers.
        shared: What `open_shared` yields.
    """

    version: ClassVar[int] = 1
    dialect: ClassVar[Dialect] = FreeDialect()
    resume: ClassVar[Resume] = "reenact"
    system: ClassVar[str] = ""
    roles: ClassVar[tuple[str, ...]] = ()
    schemas: ClassVar[Sequence[ToolSchema]] = ()
    explores: ClassVar[bool] = False
    scores_references: ClassVar[bool] = False
    task: ClassVar[Task]
    shared: ClassVar[Any] = None

    # Made when it is first used: a generator takes 2.5 KiB, and thousands of rollouts are held at once.
    @functools.cached_property
    def rng(self) -> random.Random:
        """Random numbers of this rollout; seeded by run, task and sample."""
        return random.Random(derive_seed(self._seed, "environment"))

    @functools.cached_property
    def group_rng(self) -> random.Random:
        """Random numbers that are the same in all rollouts of a task."""
        return random.Random(derive_seed(self._group_seed, "environment"))

    async def reset(self, task: Task) -> str | Sequence[Mapping[str, str]]:
        """Return the first user message, or all messages before the model's first turn."""
        return task.user_message

    async def step(self, turn: ModelTurn) -> Reaction:
        """React to a turn of the model."""
        raise NotImplementedError(f"{type(self).__name__} needs a method step(turn)")

    async def outcome(self) -> Outcome | float | None:
        """Return the outcome if it depends on the episode's live state; None to leave it to `score` or turn rewards."""
        return None

    async def score(self, task: Task, rollout: StoredRollout) -> Outcome | float | None:
        """Return how good a finished rollout is; called on a new instance, at any time after the rollout.

        By default return the rollout's outcome, else the sum of its turns' rewards. None means unknown, never 0. This
        method cannot `ask`, and `shared` is None in it.
        """
        return rollout.outcome or rollout.reward

    async def close(self) -> None:
        """Release what the episode holds."""

    @classmethod
    def open_shared(cls, settings: Any, resources: Resources) -> AbstractAsyncContextManager[Any]:
        """Return a context manager whose value all episodes of a process share as `self.shared`."""
        return _nothing()

    @classmethod
    async def tasks(cls, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the tasks of a split (`train`, `heldout`) as rows: `question`, and `payload` or `answers` if needed."""
        no_tasks: tuple[Mapping[str, Any], ...] = ()
        for row in no_tasks:
            yield row

    @classmethod
    def hidden_information(cls, settings: Any, task: Task) -> str | None:
        """Return a sentence that states what the policy cannot see of a task, for critics; None if there is nothing."""
        return None

    async def ask(self, role: str, messages: Sequence[Mapping[str, str]]) -> str:
        """Ask a model of the run; its answer is journaled, so that a resumed episode does not ask again."""
        if self._models is None:
            raise ConfigError(
                f"{type(self).__name__}.score cannot ask {role!r}: models are asked in episodes; ask it in `outcome`, "
                "whose result `score` finds in rollout.outcome"
            )
        model = self._models.get(role)
        if model is None:
            raise ConfigError(f"{type(self).__name__} asks {role!r}: add it to its `roles` and to [models]")
        number, self._num_asked = self._num_asked, self._num_asked + 1
        reply = await model.ask(
            messages,
            cache=self._cache,
            unit=asked_unit(role, number),
            seed=derive_seed(self._seed, "ask", role, number),
            session=f"{self.task.key} {self._seed}",
            deadline=self._deadline,
        )
        return reply.text

    async def run_calls(self, turn: ModelTurn) -> list[Message]:
        """Run the calls of a turn with the tools of `environment.tools`; return a message with the result of each.

        The calls are recorded with their times; a resumed episode gets the recorded results of stateless tools. Remove
        calls of tools in `schemas` from `turn.calls` first: this method cannot run them.
        """
        if self._calls is None or self._step is None:
            raise ConfigError(f"{type(self).__name__}.run_calls is for `step` alone")
        observation = await self._calls.run(turn, self._step)
        self._ran = replace(
            observation,
            calls=(*self._ran.calls, *observation.calls),
            messages=(),
            tools=(*self._ran.tools, *observation.tools),
        )
        return list(observation.messages)

    def _take_ran(self) -> Observation:
        """Return the calls that `run_calls` ran, and the tools that they added, since this method was last called."""
        ran, self._ran = self._ran, Observation()
        return ran

    def prepare(self, task: Task, settings: EnvironmentSettings, shared: Any, seed: int, group_seed: int) -> None:
        """Set the attributes of an instance before `reset` or `score`."""
        names = type(settings).model_fields.keys() - EnvironmentSettings.model_fields.keys()
        for name in names:
            setattr(self, name, getattr(settings, name))
        for name, value in (("task", task), ("shared", shared)):
            setattr(self, name, value)
        self._seed = seed
        self._group_seed = group_seed

    def connect(self, cache: CallCache, models: Mapping[str, RoleModel], calls: EpisodeCalls) -> None:
        """Set what `ask` and `run_calls` need."""
        self._cache = cache
        self._models = models
        self._calls = calls

    _cache: CallCache = NullCache()
    _models: Mapping[str, RoleModel] | None = None
    _calls: EpisodeCalls | None = None
    _step: StepContext | None = None
    _ran: Observation = Observation()
    _num_asked: int = 0
    _deadline: float = float("inf")
    _seed: int = 0
    _group_seed: int = 0


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield None
