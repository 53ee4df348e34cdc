"""Open what the stage `exploration` needs: its models, the environments of the seed tasks, and the scorers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace

from treadle.agent.call_cache import CallCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.jobs.wall_limit import timed_rollout
from treadle.agent.model_sessions import ModelSession, ModelSessions
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.core.store.keyed_store import KeyedStore
from treadle.datagen.exploration.settings import ExplorationSettings
from treadle.datagen.exploration.usage import EXPLORER, GRADER, SOLVER, SUMMARISER
from treadle.environments.opening import engine_of, open_runtimes
from treadle.environments.rollouts.restarts import roll_out_again
from treadle.environments.scorers.graders.grader import Grader
from treadle.environments.types import EnvironmentRuntime, Resources


@dataclass(frozen=True, slots=True)
class OpenExploration:
    """Open resources for explorations and replays.

    Attributes:
        engines: Engine by role and name of the environment.
        runtimes: Open environments by name.
        summariser: Model that makes tasks.
        grader: Model that grades rollouts; None if the grader asks no model.
    """

    settings: ExplorationSettings
    engines: Mapping[tuple[str, str], RolloutEngine]
    runtimes: Mapping[str, EnvironmentRuntime]
    summariser: RoleModel
    grader: RoleModel | None

    async def play(self, role: str, task: Task, *, seed: int, cache: CallCache, hint: str = "") -> Trajectory:
        """Return a rollout of a task by the agent in a role; replies that `cache` has are not requested again.

        Raises ToolError and ModelError if infrastructure keeps it from finishing.
        """
        engine, runtime = self.engines[role, task.environment], self.runtimes[task.environment]
        options = EpisodeOptions(hint=hint, group_seed=seed)
        return await timed_rollout(
            lambda deadline: roll_out_again(
                lambda seed, cache: engine.roll_out(
                    runtime.episode(), task, seed=seed, deadline=deadline, cache=cache, options=options
                ),
                seed,
                cache,
            ),
            rollout_time_s=self.settings.named_environments()[task.environment].rollout_time_s,
            wall_limit_s=self.settings.options.wall_limit_s,
        )


@contextlib.asynccontextmanager
async def open_exploration(
    settings: ExplorationSettings, sessions: ModelSessions, store: Callable[[str], KeyedStore]
) -> AsyncIterator[OpenExploration]:
    """Open models and environments for the duration of the block. Raises ConfigError, ToolError and ModelError."""
    agents = {role: await _agent(settings, sessions, role) for role in (EXPLORER, SOLVER)}
    given = settings.roles[SUMMARISER]
    session = await sessions.model(given.name, given.model, given.tokenizer_digest)
    summariser = session.for_role(SUMMARISER, given.sampling, only_messages=True)
    environments = settings.named_environments()
    async with open_runtimes(environments, await _resources(settings, sessions, store)) as runtimes:
        yield OpenExploration(
            settings,
            {(role, name): _engine(settings, agents[role], role, name) for role in agents for name in environments},
            runtimes,
            summariser,
            await _grader(settings, sessions),
        )


async def _agent(settings: ExplorationSettings, sessions: ModelSessions, role: str) -> ModelSession:
    given = settings.roles[role]
    is_native = any(isinstance(one.turn_dialect, FunctionsDialect) for one in settings.named_environments().values())
    return await sessions.model(given.name, given.model, given.tokenizer_digest, calls_tools=is_native)


def _engine(settings: ExplorationSettings, session: ModelSession, role: str, name: str) -> RolloutEngine:
    engine = engine_of(session, settings.named_environments()[name], settings.roles[role].sampling, role=role)
    if role != EXPLORER:
        return engine
    return replace(engine, limits=replace(engine.limits, max_turns=settings.options.strategy.max_steps))


async def _resources(
    settings: ExplorationSettings, sessions: ModelSessions, store: Callable[[str], KeyedStore]
) -> Resources:
    roles = {
        role: (await sessions.model(one.name, one.model, one.tokenizer_digest)).for_role(
            role, one.sampling, only_messages=True
        )
        for role, one in settings.environment_roles.items()
    }
    one = settings.summarizer
    summarizer = None if one is None else await sessions.model(one.name, one.model, one.tokenizer_digest)
    return Resources(summarizer, store, roles=roles)


async def _grader(settings: ExplorationSettings, sessions: ModelSessions) -> RoleModel | None:
    grader = settings.grader
    if not isinstance(grader, Grader):
        return None
    session = await sessions.model(settings.options.grader, grader.service())
    return session.for_role(GRADER, grader.sampling, only_messages=True)
