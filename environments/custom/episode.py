"""Play an episode of an environment class: text and messages of the user's code become observations."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from treadle.agent.contract import (
    EpisodeDiverged,
    EpisodeOptions,
    InitialState,
    Message,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.role import RoleModel
from treadle.core.chat_turns import well_formed
from treadle.core.errors import DeadlineExceeded
from treadle.core.work_clock import work_clock
from treadle.environments.custom.base import Done, Environment
from treadle.environments.settings import EnvironmentSettings


class CustomEpisode:
    """Episode of one instance; see `treadle.agent.contract.Episode`."""

    def __init__(
        self, environment: Environment, settings: EnvironmentSettings, shared: Any, models: Mapping[str, RoleModel]
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._shared = shared
        self._models = models

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Prepare the instance and ask it for its first messages."""
        environment = self._environment
        environment.prepare(task, self._settings, self._shared, options.seed, options.group_seed)
        environment.connect(options.cache, self._models)
        with places_named(environment):
            first = await environment.reset(task)
        if not isinstance(first, str):
            return InitialState([{key: well_formed(value) for key, value in message.items()} for message in first])
        system = [{"role": "system", "content": environment.system}] if environment.system else []
        return InitialState([*system, {"role": "user", "content": well_formed(first)}])

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Let the instance react; a turn that the server withheld ends the rollout.

        Raises DeadlineExceeded if it does not react in time.
        """
        if turn.ended == "filtered":
            return Observation(status="filtered")
        self._environment._deadline = context.deadline
        name = type(self._environment).__name__
        try:
            async with work_clock().limit(None if math.isinf(context.deadline) else context.deadline):
                with places_named(self._environment):
                    reaction = await self._environment.step(turn)
        except TimeoutError as error:
            if work_clock().time() < context.deadline:
                raise
            raise DeadlineExceeded(f"{name}.step did not react before the rollout's time limit") from error
        return _storable(_observation(reaction, name))

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Act the turn again and compare; raise EpisodeDiverged for another reaction, or if the class restarts."""
        if self._environment.resume == "restart":
            raise EpisodeDiverged("the state of the episode is gone")
        if self._environment.resume == "reenact":
            again = await self.step(turn, context)
            if again != observation:
                raise EpisodeDiverged("the environment reacted to a recorded turn in another way")

    async def outcome(self) -> Outcome | None:
        """Return what the instance says about its state."""
        with places_named(self._environment):
            return as_outcome(await self._environment.outcome())

    async def close(self) -> None:
        """Close the instance."""
        await self._environment.close()


@contextlib.contextmanager
def places_named(environment: Environment) -> Iterator[None]:
    """Note the line of the class's own file at an error that its code raises."""
    try:
        yield
    except Exception as error:
        own = {cls.__module__ for cls in type(environment).__mro__[:-1]} - {Environment.__module__}
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            if frame.f_globals.get("__name__") in own:
                error.add_note(f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}")
                break
        raise


def as_outcome(value: Outcome | float | None) -> Outcome | None:
    """Return a number as the reward of an outcome."""
    return Outcome(reward=float(value)) if isinstance(value, (int, float)) else value


def _storable(observation: Observation) -> Observation:
    """Replace lone surrogates in messages, which can be neither sent nor stored, with U+FFFD."""
    messages = tuple([Message(well_formed(one.text), one.role, one.call) for one in observation.messages])
    return observation if messages == observation.messages else replace(observation, messages=messages)


def _observation(reaction: Any, name: str) -> Observation:
    if isinstance(reaction, Done):
        messages = (Message(reaction.text),) if reaction.text else ()
        return Observation((), messages, "finished", reaction.reward, reaction.truncated)
    if isinstance(reaction, str):
        return Observation(messages=(Message(reaction),))
    if isinstance(reaction, Message):
        return Observation(messages=(reaction,))
    if isinstance(reaction, Observation):
        return reaction
    if isinstance(reaction, Sequence) and reaction and all(isinstance(one, Message) for one in reaction):
        return Observation(messages=tuple(reaction))
    raise TypeError(f"{name}.step returned {reaction!r:.80}; return text, Message, a list of Message, or Done")
