"""Keep a stock of warm sandboxes; each is used once and replaced in the background.

A waiting sandbox imports the configured packages. If calls arrive faster than sandboxes start, a program imports the
remaining packages itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os

from treadle.agent.sandbox.bubblewrap import Launcher, make_launcher
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.leftovers import end_leftovers
from treadle.agent.sandbox.process import Program, ProgramResult, SandboxProcess
from treadle.agent.sandbox.usage import UsageWatch
from treadle.core.errors import SandboxError
from treadle.core.work_clock import work_clock

_logger = logging.getLogger(__name__)


class SandboxPool:
    """Pool of warm sandboxes on one event loop: `async with SandboxPool(settings) as pool`."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._launcher: Launcher | None = None
        self._guardian = Guardian()
        self._usage = UsageWatch()
        self._warm: asyncio.Queue[SandboxProcess | SandboxError] = asyncio.Queue()
        self._starting: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._running = asyncio.Semaphore(settings.max_running)
        self._start_slots = asyncio.Semaphore(os.cpu_count() or 1)

    async def __aenter__(self) -> SandboxPool:
        """Start the sandboxes; return when the first is ready. Raises SandboxError with a remedy."""
        self._launcher = await asyncio.to_thread(make_launcher, self._settings)
        if self._launcher.bwrap is not None and (num_ended := await asyncio.to_thread(end_leftovers)):
            _logger.info("ended %d incomplete sandboxes left by a killed process", num_ended)
        if self._settings.kind == "none":
            _logger.warning('sandbox.kind = "none": programs of the model run with your own rights')
        try:
            first = await SandboxProcess.start(
                self._guardian, self._launcher, self._settings.start_timeout_s, eager=True
            )
            if self._launcher.bwrap is not None:
                how = "a memory cgroup of its own" if first.has_cgroup else "sampling from outside, without a cgroup"
                _logger.info("the memory of each sandbox is limited by %s", how)
            self._warm.put_nowait(first)
        except BaseException:
            await self.__aexit__()
            raise
        self._refill()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Kill all sandboxes and wait until they have ended, for at most a minute."""
        self._launcher = None
        starting = list(self._starting)
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        warm = [self._warm.get_nowait() for _ in range(self._warm.qsize())]
        await asyncio.gather(*(sandbox.discard() for sandbox in warm if isinstance(sandbox, SandboxProcess)))
        await asyncio.to_thread(self._guardian.close)
        await asyncio.to_thread(self._usage.close)

    async def run(self, program: str | Program, *, time_limit_s: float, deadline: float | None = None) -> ProgramResult:
        """Run one program for at most `time_limit_s`, and not past `deadline` (a time of `work_clock`).

        That clock stops while the call waits for a sandbox: the size of the pool is operational and must not make a
        program time out. Raise SandboxError if no sandbox can be started.
        """
        clock = work_clock()
        with clock.hold():
            await self._running.acquire()
        try:
            try:
                with clock.hold():
                    sandbox = await self._take()
            except SandboxError as error:
                # The pool has started sandboxes before, so this error may be transient.
                error.retryable = True
                raise
            if deadline is not None:
                time_limit_s = min(time_limit_s, deadline - clock.time())
            cpu_s = self._settings.cpu_s or math.ceil(max(time_limit_s, 0.0)) + 1
            try:
                whole = Program(program) if isinstance(program, str) else program
                return await sandbox.run(whole, self._usage, time_limit_s=time_limit_s, cpu_s=cpu_s)
            except asyncio.CancelledError:
                await asyncio.shield(sandbox.discard())
                raise
        finally:
            self._running.release()

    async def _take(self) -> SandboxProcess:
        """Return an unused sandbox and start its replacement; discard sandboxes that ended while they waited."""
        self._waiting += 1
        try:
            while True:
                self._refill()
                sandbox = await self._warm.get()
                if isinstance(sandbox, SandboxError):
                    raise sandbox
                if sandbox.is_alive:
                    return sandbox
                await sandbox.discard()
        finally:
            self._waiting -= 1
            self._refill()

    def _refill(self) -> None:
        if self._launcher is None:
            return
        wanted = self._settings.pool_size + self._waiting - self._warm.qsize() - len(self._starting)
        for _ in range(wanted):
            task = asyncio.get_running_loop().create_task(self._start_one(self._launcher))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start_one(self, launcher: Launcher) -> None:
        async with self._start_slots:
            try:
                timeout_s = self._settings.start_timeout_s
                self._warm.put_nowait(await SandboxProcess.start(self._guardian, launcher, timeout_s, eager=False))
            except Exception as error:  # noqa: BLE001 - a call may wait for this sandbox with its clock held
                failure = error if isinstance(error, SandboxError) else _unforeseen(error)
                # Pass the error to a waiting call, if there is one; the next call tries again.
                if self._waiting > self._warm.qsize():
                    self._warm.put_nowait(failure)
                else:
                    _logger.warning("%s", failure)


def _unforeseen(error: Exception) -> SandboxError:
    failure = SandboxError(f"cannot start a sandbox: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
