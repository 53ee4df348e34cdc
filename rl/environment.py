"""Open the run's environment in an engine's process, with the same tools, prompt and limits as in every rollout.

An engine gets the stage's settings, with paths and the interpreter of programs filled in, and their digest. An
environment with another digest is refused. See docs/behaviour/group-rollouts.md, part "The environment".
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from treadle.agent.config import EnvironmentSettings
from treadle.agent.environment import ToolEnvironment
from treadle.agent.metering import TokenBudget
from treadle.agent.model_sessions import ModelSessions
from treadle.agent.model_types import ChatCodec, CompletionModel, RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import Tool
from treadle.core.errors import ConfigError
from treadle.core.llm.config import Sampling
from treadle.core.steady_loop import SteadyLoop
from treadle.rl.groups.batching import BatchMembership
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.rollout import GroupRollouts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenEnvironment:
    """An environment with open tools."""

    settings: EnvironmentSettings
    tools: Mapping[str, Tool]

    def episode(self) -> ToolEnvironment:
        """Return the environment of one trajectory."""
        return ToolEnvironment(self.settings, self.tools)

    def engine(
        self,
        model: CompletionModel,
        codec: ChatCodec,
        sampling: Sampling,
        *,
        max_response_tokens: int | None = None,
        max_model_len: int | None = None,
    ) -> RolloutEngine:
        """Return a rollout engine with the environment's limits; the smaller limit of the assistant's turn applies."""
        settings = self.settings
        bounds = [bound for bound in (settings.max_trajectory_tokens, max_response_tokens) if bound is not None]
        limits = RolloutLimits(
            max_turns=settings.turn_limit(),
            max_model_len=max_model_len,
            max_trajectory_tokens=min(bounds, default=None),
        )
        return RolloutEngine(model, codec, sampling, limits, settings.dialect)

    def groups(
        self,
        engine: RolloutEngine,
        branching: Branching,
        *,
        vocab_size: int,
        membership: BatchMembership | None = None,
    ) -> GroupRollouts:
        """Return a runner of groups in this environment; `membership` is that of the `BatchedModel`, if any."""
        return GroupRollouts(
            engine=engine,
            new_environment=self.episode,
            branching=branching,
            rollout_time_s=self.settings.rollout_time_s,
            vocab_size=vocab_size,
            membership=membership or BatchMembership(),
        )


@contextlib.asynccontextmanager
async def open_environment(
    settings: EnvironmentSettings,
    *,
    digest: str = "",
    interpreter: Path | None = None,
) -> AsyncIterator[OpenEnvironment]:
    """Open the tools for the duration of the block.

    `digest` is the expected digest, or empty to accept any; `interpreter` runs programs unless the settings name one.
    Raises ConfigError if the digest differs, and ToolError or EndpointUnavailable if a tool cannot be opened.
    """
    found = settings.digest()
    if digest not in ("", found):
        raise ConfigError(
            f"the agent's prompts, tools or limits in this engine (digest {found[:12]}) are not those of the run "
            f"({digest[:12]}): the plan was made by another version of Treadle; run the stage again"
        )
    settings = with_interpreter(settings, interpreter)
    async with ModelSessions(TokenBudget(None)) as sessions:
        # A policy in training sends new queries, so a query that is not on record must not end the training.
        yield OpenEnvironment(settings, await sessions.tools(settings, None, misses_are_empty=True))


def with_interpreter(settings: EnvironmentSettings, interpreter: Path | None) -> EnvironmentSettings:
    """Return the settings with a Python interpreter for programs, unless they name one.

    The interpreter must have the packages of the sandbox.
    """
    sandbox = settings.python.sandbox
    if interpreter is None or sandbox.interpreter is not None:
        return settings
    python = settings.python.model_copy(update={"sandbox": sandbox.model_copy(update={"interpreter": interpreter})})
    return settings.model_copy(update={"python": python})


class ResidentEnvironment:
    """An open environment for synchronous engines, on an event loop in a separate thread.

    Background work of the tools, such as keeping sandboxes warm, continues while the engine trains.
    """

    open: OpenEnvironment
    """The open environment, inside the block; use objects that it makes only in `run`."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        *,
        digest: str = "",
        interpreter: Path | None = None,
    ) -> None:
        """Prepare an environment with the arguments of `open_environment`; entering the block opens it."""
        self._context = open_environment(settings, digest=digest, interpreter=interpreter)
        self._loop = SteadyLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environment", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.open = self.run(self._context.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.run(self._context.__aexit__(None, None, None))
        finally:
            self._stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and return its result; cancel it there if this thread is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
