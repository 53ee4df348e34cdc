"""Ask a model for verdicts during a training, from an event loop in a separate thread.

Equal cases, such as equal answers to the same question, are sent to the model only until there is a verdict.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.types import Completion, EndpointState
from treadle.core.steady_loop import SteadyLoop
from treadle.core.work_clock import timed_work
from treadle.rl.rewards.verdict_store import V, VerdictStore

T = TypeVar("T")


class ModelAsker(Generic[V]):
    """Chat model with open connections, and its stored verdicts on cases, such as answers.
    `run` and `servers` are for other threads; the coroutines run on the asker's event loop.
    """

    def __init__(self, name: str, settings: ModelSettings, known: VerdictStore[V]) -> None:
        """Prepare requests to the chat endpoint; messages call the model by `name`, its table in the configuration."""
        self._name = name
        self._settings = settings.model_copy(update={"api": "chat"})
        self._known: VerdictStore[V] = known
        self._asked: dict[str, asyncio.Task[V | None]] = {}
        self._loop = SteadyLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        # Engines that use another rule do not import the client.
        from treadle.core.llm.pool import ModelPool

        self._thread.start()
        self._pool = ModelPool(self._name, self._settings)
        self.run(self._pool.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.run(self._pool.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the asker's event loop, and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def servers(self) -> list[tuple[str, EndpointState]]:
        """Return the states of the model's endpoints."""
        return [(self._pool.name, state) for state in self._pool.endpoint_states()]

    @property
    def has_answered(self) -> bool:
        """True once any verdict is stored, by this process or an earlier one."""
        return len(self._known) > 0

    def known(self, digest: str) -> V | None:
        """Return the verdict on the case with this digest that this or an earlier process stored; None without one."""
        return self._known.get(digest)

    async def once(self, digest: str, ask: Callable[[], Awaitable[V | None]]) -> V | None:
        """Return the verdict on the case with this digest: the stored one, or the result of `ask`.

        Concurrent calls for equal cases share one call of `ask`. A verdict is stored before it is returned. Without a
        verdict nothing is stored, so a later step may ask again.
        """
        if (known := self.known(digest)) is not None:
            return known
        task = self._asked.get(digest)
        if task is None:
            task = self._asked[digest] = asyncio.ensure_future(self._kept(digest, ask))
            task.add_done_callback(lambda done: self._forget(digest, done))
        return await asyncio.shield(task)

    async def _kept(self, digest: str, ask: Callable[[], Awaitable[V | None]]) -> V | None:
        """Return a new verdict; it is stored even if all callers have been cancelled."""
        verdict = await ask()
        if verdict is not None:
            self._known.put(digest, verdict)
        return verdict

    def _forget(self, digest: str, done: asyncio.Task[V | None]) -> None:
        del self._asked[digest]
        if not done.cancelled():
            done.exception()  # otherwise asyncio logs it if no caller is left

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], sampling: Sampling, *, seed: int, session: str, limit_s: float
    ) -> Completion:
        """Return a reply; raise ModelErrors, and DeadlineExceeded after `limit_s` seconds.

        Waiting for an unavailable server does not count towards the limit.
        """
        with timed_work() as clock:
            deadline = clock.time() + limit_s
            return await self._pool.chat(messages, sampling, seed=seed, session=session, deadline=deadline)
