"""Open the run's environments in an engine's process, with the same tools, prompts and limits as in every rollout.

See docs/behaviour/group-rollouts.md, part "The environment".
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from treadle.agent.model_types import ChatCodec, CompletionModel
from treadle.agent.rollout import RolloutEngine
from treadle.core.llm.config import Sampling
from treadle.core.steady_loop import SteadyLoop
from treadle.core.untrusted.concealment import exits_as_errors
from treadle.environments.mixture import Environments
from treadle.environments.opening import errors_named, limits_of, open_runtime
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.types import EnvironmentRuntime, Resources
from treadle.rl.groups.batching import BatchMembership
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.live import LiveRollouts
from treadle.rl.groups.rollout import GroupRollouts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenEnvironment:
    """An open environment."""

    settings: EnvironmentSettings
    runtime: EnvironmentRuntime

    def engine(
        self,
        model: CompletionModel,
        codec: ChatCodec,
        sampling: Sampling,
        *,
        max_response_tokens: int | None = None,
        max_model_len: int | None = None,
    ) -> RolloutEngine:
        """Return a rollout engine with the environment's limits.

        If the environment limits the tokens of a trajectory too, the smaller of this and `max_response_tokens` applies.
        """
        limits = limits_of(self.settings, max_model_len=max_model_len, max_response_tokens=max_response_tokens)
        return RolloutEngine(model, codec, sampling, limits, self.settings.turn_dialect.bound(codec, is_chat=False))

    def groups(
        self,
        engine: RolloutEngine,
        branching: Branching,
        *,
        vocab_size: int,
        max_prompt_tokens: float = math.inf,
        membership: BatchMembership | None = None,
        wall_limit_s: float = math.inf,
        live: LiveRollouts | None = None,
    ) -> GroupRollouts:
        """Return a runner of groups in this environment.

        `membership` is that of the `BatchedModel`, if the policy is one. `live` shows the groups while they are rolled
        out. A prompt of more than `max_prompt_tokens` tokens ends its trajectory before the first turn.
        """
        limits = replace(engine.limits, max_prompt_tokens=max_prompt_tokens)
        return GroupRollouts(
            engine=replace(engine, limits=limits),
            runtime=self.runtime,
            branching=branching,
            rollout_time_s=self.settings.rollout_time_s,
            vocab_size=vocab_size,
            max_samples=self.settings.context.max_samples,
            membership=membership or BatchMembership(),
            wall_limit_s=wall_limit_s,
            live=live or LiveRollouts(),
        )


@contextlib.asynccontextmanager
async def open_environment(
    settings: EnvironmentSettings, *, interpreter: Path | None = None
) -> AsyncIterator[OpenEnvironment]:
    """Open the tools for the duration of the block; `interpreter` runs programs unless the settings name one.

    Raises ToolError or EndpointUnavailable if a tool cannot be opened.
    """
    settings = settings.with_interpreter(interpreter)
    # A policy in training sends new queries, so a query that is not on record must not end the training.
    async with open_runtime(settings, Resources(misses_are_empty=True)) as runtime:
        yield OpenEnvironment(settings, runtime)


@contextlib.asynccontextmanager
async def open_environments(
    environments: Environments, *, interpreter: Path | None = None
) -> AsyncIterator[Mapping[str, OpenEnvironment]]:
    """Open several environments like `open_environment`, by name."""
    async with contextlib.AsyncExitStack() as stack:
        opened = {}
        for name, settings in environments.items():
            with errors_named(name):
                opened[name] = await stack.enter_async_context(open_environment(settings, interpreter=interpreter))
        yield opened


class ResidentEnvironments:
    """Open environments for synchronous engines, on an event loop in a separate thread.

    Background work of the tools, such as keeping sandboxes warm, continues while the engine trains.
    """

    open: Mapping[str, OpenEnvironment]
    """The open environments by name, inside the block. Use objects that they make only in coroutines given to `run`."""

    def __init__(self, environments: Environments, *, interpreter: Path | None = None) -> None:
        """Prepare environments with the arguments of `open_environments`; entering the block opens them."""
        self._context = open_environments(environments, interpreter=interpreter)
        self._loop = SteadyLoop()
        self._thread = threading.Thread(target=self._run_loop, name="environment", daemon=True)

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
            with exits_as_errors():
                return future.result()
        except BaseException:
            future.cancel()
            raise

    def _run_loop(self) -> None:
        is_stopped = False
        while not is_stopped:
            # A task of a user's code that exits also ends the loop, and `run` would wait for ever.
            with contextlib.suppress(SystemExit):
                self._loop.run_forever()
                is_stopped = True

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
