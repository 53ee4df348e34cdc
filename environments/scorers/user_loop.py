"""Run scorers with code of users in an event loop of their own, which may be given up if the code blocks it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from treadle.agent.contract import Task
from treadle.core.errors import ConfigError, EndpointUnavailable, ToolError
from treadle.core.steady_loop import TICK_S, SteadyClock, SteadyLoop
from treadle.core.untrusted.concealment import user_code
from treadle.environments.scorers.base import Scorer
from treadle.environments.stored_rollout import StoredRollout

_log = logging.getLogger(__name__)

_MAX_AT_ONCE = 32
"""Scores that are computed at once: each may start processes."""
_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class ScorerCall:
    """Call of one scorer for one rollout; `name` is that of the scorer in the configuration."""

    name: str
    scorer: Scorer
    task: Task
    rollout: Callable[[], StoredRollout]


class UserLoop:
    """Event loop in a thread, in which scorers are open. Safe to use from several threads.

    Code that blocks the loop cannot be interrupted. Its rollout has no verdict, and a new loop scores the others.
    """

    def __init__(self, scorers: Mapping[str, Scorer]) -> None:
        """Prepare to open each of `scorers` with the first call that needs it."""
        self._scorers = scorers
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def results(self, calls: Sequence[ScorerCall]) -> list[Any]:
        """Return what each scorer returned, or the exception that it raised.

        Raises ConfigError if a scorer cannot be opened, EndpointUnavailable if one cannot reach its service: the stage
        or the training can resume when the service is back.
        """
        found: dict[int, Any] = {}
        while len(found) < len(calls):
            pending = {number: call for number, call in enumerate(calls) if number not in found}
            found |= self._running_loop({call.name for call in calls}).results(pending)
        for result in found.values():
            if isinstance(result, EndpointUnavailable):
                raise result
        return [found[number] for number in range(len(calls))]

    def close(self) -> None:
        """Close the scorers."""
        with self._lock:
            if self._running is not None:
                self._running.close()
            self._running = None

    def _running_loop(self, names: Set[str]) -> _Running:
        """Return a loop in which these scorers are open."""
        with self._lock:
            while True:
                if self._running is None or self._running.is_given_up:
                    self._running = _Running(self._scorers)
                if self._running.open(names):
                    return self._running


class _Running:
    """One event loop in a thread."""

    def __init__(self, scorers: Mapping[str, Scorer]) -> None:
        self._scorers = scorers
        self._loop = SteadyLoop()
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._opened: dict[str, concurrent.futures.Future[None]] = {}
        self._wanted: asyncio.Queue[str | None]
        self._places: asyncio.Semaphore
        self._tasks: dict[asyncio.Task[Any], ScorerCall] = {}
        self.is_given_up = False
        # A daemon, because code that blocks must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="scorers", daemon=True)
        self._thread.start()
        self._started.result()

    def open(self, names: Set[str]) -> bool:
        """Open scorers that are not open yet; return False if the loop is given up. Raises ConfigError.

        Only one thread at a time may call it.
        """
        for name in sorted(names & self._scorers.keys() - self._opened.keys()):
            self._opened[name] = concurrent.futures.Future()
            try:
                self._loop.call_soon_threadsafe(self._wanted.put_nowait, name)
            except RuntimeError:  # The loop was closed by another thread.
                return False
        opening = [self._opened[name] for name in sorted(names & self._scorers.keys())]
        while concurrent.futures.wait(opening, timeout=TICK_S).not_done:
            if self.is_given_up:
                return False
        for future in opening:
            future.result()
        return True

    def results(self, calls: Mapping[int, ScorerCall]) -> dict[int, Any]:
        """Return results by the number of their call: all of them, unless the loop was given up."""
        futures = {}
        for number, call in calls.items():
            coroutine = self._call(call)
            try:
                futures[number] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            except RuntimeError:  # The loop was closed by another thread.
                coroutine.close()
        blocking = self._wait(list(futures.values()))
        found = {number: future.result() for number, future in futures.items() if future.done()}
        if blocking is not None:
            found |= {number: _blocked(call) for number, call in calls.items() if call is blocking}
        return found

    def _wait(self, futures: Sequence[concurrent.futures.Future[Any]]) -> ScorerCall | None:
        """Wait for all futures, or until code blocks the loop; return the call that blocks it, or None."""
        clock, since, last = SteadyClock(), 0.0, None
        while concurrent.futures.wait(futures, timeout=TICK_S).not_done and not self.is_given_up:
            # Polls may see the same task although it yielded in between; then a later poll sees another task or None.
            task, now = asyncio.current_task(self._loop), clock.time()
            if task is not last or task is None:
                since, last = now, task
                continue
            call = self._tasks.get(task)
            limit_s = call.scorer.TIME_LIMIT_S if call is not None else None
            if call is not None and limit_s is not None and now - since > limit_s:
                self.is_given_up = True
                return call
        return None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wanted.put_nowait, None)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            _log.warning("the loop of scorers ended: %s", error)
        finally:
            self.is_given_up = True
            with contextlib.suppress(RuntimeError):
                self._loop.close()

    async def _main(self) -> None:
        self._wanted, self._places = asyncio.Queue(), asyncio.Semaphore(_MAX_AT_ONCE)
        self._started.set_result(None)
        # One task opens and closes all: some contexts must be left by the task that entered them.
        async with contextlib.AsyncExitStack() as stack:
            while (name := await self._wanted.get()) is not None:
                await self._open(stack, name)

    async def _open(self, stack: contextlib.AsyncExitStack, name: str) -> None:
        try:
            await stack.enter_async_context(self._scorers[name].open())
        except BaseException as error:
            failure = ConfigError(f"scorer {name} cannot be opened: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._opened[name].set_exception(failure)
            if not isinstance(error, Exception):
                raise
        else:
            self._opened[name].set_result(None)

    async def _call(self, call: ScorerCall) -> Any:
        async with self._places:
            with self._noted(call):
                try:
                    async with asyncio.timeout(call.scorer.TIME_LIMIT_S) as scope:
                        with user_code(call.scorer, call.task.payload):
                            return await call.scorer.score(call.task, call.rollout())
                except TimeoutError as error:
                    return _too_slow(call) if scope.expired() else error
                except Exception as error:  # noqa: BLE001 - any error of a user's code leaves one rollout without a verdict
                    return error
                except BaseException as error:  # noqa: BLE001 - such as CancelledError, which a user's code may raise itself
                    return ToolError(f"scorer {call.name} raised {type(error).__name__}")

    @contextlib.contextmanager
    def _noted(self, call: ScorerCall) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None, "a coroutine of a loop runs in a task"
        self._tasks[task] = call
        try:
            yield
        finally:
            del self._tasks[task]


def _too_slow(call: ScorerCall) -> ToolError:
    return ToolError(f"scorer {call.name} did not return within {call.scorer.TIME_LIMIT_S:g} s")


def _blocked(call: ScorerCall) -> ToolError:
    return ToolError(
        f"scorer {call.name} blocked its event loop for {call.scorer.TIME_LIMIT_S:g} s; use `await`, or "
        "asyncio.to_thread for code that takes long"
    )
