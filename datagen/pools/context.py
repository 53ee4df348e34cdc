"""Define the shared resources of the stage `pools`, and a null model for replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treadle.agent.contract import (
    Episode,
    EpisodeOptions,
    InitialState,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.dialects.tags import TagDialect
from treadle.agent.edit import with_visible_thoughts
from treadle.agent.judges.cases import Verifier
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.datagen.operators.base import Operator
from treadle.datagen.pools.settings import PoolOptions
from treadle.datagen.prompts import PromptSet
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.types import EnvironmentRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolContext:
    """Resources that all questions of a stage share.

    Attributes:
        fresh: Engine for rollouts from the start.
        continuing: Engine for rollouts that continue from an edit.
        roles: Models of critic and refiner.
        final: Whether no question may be left pending: an infrastructure error then counts as the operator's failure.
    """

    options: PoolOptions
    environment: EnvironmentSettings
    fresh: RolloutEngine
    continuing: RolloutEngine
    runtime: EnvironmentRuntime
    roles: Mapping[str, RoleModel]
    judge: Verifier
    operators: Sequence[Operator]
    prompts: PromptSet
    policy_name: str
    seed: int
    final: bool = False

    def for_replay(self, cause: str) -> PoolContext:
        """Return a context that replays stored answers; all requests but those to the judge fail with `cause`."""
        null_model = NullModel(cause)
        return replace(
            self,
            fresh=_with_model(self.fresh, null_model),
            continuing=_with_model(self.continuing, null_model),
            runtime=NullRuntime(self.runtime, cause),
            roles={name: replace(role, model=null_model) for name, role in self.roles.items()},
            final=True,
        )

    @property
    def tags(self) -> TagDialect | None:
        """Tags of the environment; None if it has native calls."""
        dialect = self.environment.turn_dialect
        return dialect if isinstance(dialect, TagDialect) else None

    def editable(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory that operators can edit: its last turn is open, and its text contains all reasoning."""
        return with_visible_thoughts(trajectory.without_turn_end(), self.fresh.dialect)

    def hints(self, domain: str) -> Sequence[str]:
        """Return the hints for questions of a domain; those for qa if it has no hints of its own."""
        hints: tuple[str, ...] = getattr(self.options.hints, domain, self.options.hints.qa)
        return hints


def _with_model(engine: RolloutEngine, model: NullModel) -> RolloutEngine:
    """Return the engine with another model, asked over the same route."""
    return replace(engine, model=model, chat=None if engine.chat is None else model)


@dataclass(frozen=True, slots=True)
class NullRuntime:
    """Environment whose episodes replay, and raise EndpointUnavailable instead of acting."""

    runtime: EnvironmentRuntime
    cause: str

    def episode(self) -> Episode:
        """Return an episode that can only replay."""
        return NullEpisode(self.runtime.episode(), self.cause)

    def facts(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """See `EnvironmentRuntime`."""
        return await self.runtime.group_options(task, size, seed)


@dataclass(frozen=True, slots=True)
class NullEpisode:
    """Episode that replays, and raises EndpointUnavailable instead of running a call."""

    episode: Episode
    cause: str

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """See `Episode`."""
        return await self.episode.reset(task, options)

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """React to a turn that needs no call; see `Episode`."""
        if turn.calls:
            raise EndpointUnavailable(self.cause)
        return await self.episode.step(turn, context)

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """See `Episode`."""
        await self.episode.replay(turn, observation, context)

    async def outcome(self) -> Outcome | None:
        """See `Episode`."""
        return await self.episode.outcome()

    async def close(self) -> None:
        """See `Episode`."""
        await self.episode.close()


@dataclass(slots=True)
class NullModel:
    """Null model; every request raises EndpointUnavailable."""

    cause: str

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Raise EndpointUnavailable; see `RoleModel`."""
        raise EndpointUnavailable(self.cause)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Completion:
        """Raise EndpointUnavailable; see `RoleModel`."""
        raise EndpointUnavailable(self.cause)
