"""Start the process of an instance from a template, talk to it, and kill it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.core.engines.process import Child, start_child
from treadle.core.errors import ConfigError, EngineError
from treadle.environments.service.errors import EnvironmentFailed, RequestUnfit, WorkerGone
from treadle.environments.service.frames import FrameEnded, pack, receive
from treadle.environments.service.hosting import TaskRow
from treadle.environments.service.template import MAX_MESSAGE_BYTES
from treadle.environments.settings import EnvironmentSettings

_START_S = 120.0
"""Longest time that loading an environment may take."""
_POLL_S = 0.1
_KILLED_S = 2.0


class Worker:
    """Process of one instance. `kill` ends it, whatever it is doing."""

    def __init__(self, pid: int, descriptor: int, channel: socket.socket, on_end: Callable[[], None]) -> None:
        """Take ownership of a process by its descriptor, and of our end of its socket pair."""
        self.pid = pid
        self.ended = asyncio.Event()
        self._descriptor = descriptor
        self._channel = channel
        self._is_asked = False
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._end)

    async def ask(self, request: Mapping[str, Any]) -> Any:
        """Send a request and return the value of its reply. Send one at a time; after a cancellation, kill the worker.

        Raises WorkerGone, EnvironmentFailed, RequestUnfit, and ValueError for a request that is too long.
        """
        frame = pack(request)
        self._is_asked = True
        try:
            await self._loop.sock_sendall(self._channel, frame)
            reply = await receive(self._loop, self._channel)
        except (FrameEnded, OSError):
            self.kill()
            raise WorkerGone from None
        finally:
            self._is_asked = False
            if self.ended.is_set():
                self._channel.close()
        if not isinstance(reply, dict):
            raise WorkerGone
        if "refused" in reply:
            raise RequestUnfit(reply["refused"])
        if "failed" in reply:
            raise EnvironmentFailed(**reply["failed"])
        return reply["ok"]

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def stop(self) -> None:
        """Kill the process, and wait up to `_KILLED_S` seconds until it has ended."""
        self.kill()
        # Only a hanging system call delays the end further; until then the process counts towards `max_processes`.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), _KILLED_S)

    def _end(self) -> None:
        """Release the descriptors of a process that has ended."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._is_asked:
            # A child of the process may keep the other end open, and the pending call would wait for it forever.
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_RDWR)
        else:
            self._channel.close()
        self.ended.set()
        self._on_end()


class ProcessInstance:
    """Instance in a process of its own; see `Backend`."""

    def __init__(self, template: Template, task: TaskRow, instance_id: str) -> None:
        self._template = template
        self._task = task
        self._id = instance_id
        self._worker: Worker | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process; None before it has started."""
        return None if self._worker is None else self._worker.pid

    async def start(self, params: Mapping[str, Any]) -> Any:
        """See `Backend`."""
        self._worker = await self._template.fork()
        return await self._worker.ask({"op": "start", "task": self._task, "instance_id": self._id, "params": params})

    async def call(self, op: str, messages: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """See `Backend`."""
        if self._worker is None or self._worker.ended.is_set():
            raise WorkerGone
        return await self._worker.ask({"op": op, "messages": messages, "params": params})

    async def close(self) -> None:
        """See `Backend`."""
        if self._worker is not None and not self._worker.ended.is_set():
            await self._worker.ask({"op": "close"})
            await self._worker.ended.wait()

    async def kill(self) -> None:
        """See `Backend`."""
        if self._worker is not None:
            await self._worker.stop()


class Template:
    """Loaded environment from which processes are forked; starts again by itself if it was killed."""

    def __init__(self, settings: EnvironmentSettings, on_count: Callable[[int], None]) -> None:
        """Prepare; nothing is started. `on_count` gets 1 for each process that starts and -1 for each that ends."""
        self._settings = settings
        self._on_count = on_count
        self._child: Child | None = None
        self._control: socket.socket | None = None
        self._folder: Path | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[tuple[int, int]]] = {}

    async def open(self) -> None:
        """Start the process and wait until the environment is loaded. Raises ConfigError and EngineError."""
        async with self._opening:
            if self._control is None:
                try:
                    await self._start()
                except BaseException:
                    await self.close()
                    raise

    async def fork(self) -> Worker:
        """Return a new process. Raises EngineError, and OSError if descriptors or processes run out."""
        await self.open()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        number = next(self._numbers)
        forked = self._pending[number] = asyncio.get_running_loop().create_future()
        self._on_count(1)
        try:
            with theirs:
                socket.send_fds(self._control, [orjson.dumps({"fork": number})], [theirs.fileno()])
            pid, descriptor = await forked
        except BaseException:
            # A process that was forked, or is forked later, finds its socket closed, and ends.
            self._on_count(-1)
            ours.close()
            if forked.done() and not forked.cancelled() and forked.exception() is None:
                os.close(forked.result()[1])
            raise
        finally:
            self._pending.pop(number, None)
        return Worker(pid, descriptor, ours, lambda: self._on_count(-1))

    async def close(self) -> None:
        """End the template process and all processes forked from it."""
        self._lose("the service is stopping")
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.stop)
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _start(self) -> None:
        if self._child is not None:
            await asyncio.to_thread(self._child.stop)
        folder = self._folder = self._folder or Path(tempfile.mkdtemp(prefix="treadle-environment-"))
        place = folder / "control"
        place.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(place))
            listener.listen(1)
            listener.setblocking(False)
            self._child = await asyncio.to_thread(
                start_child,
                [sys.executable, "-P", "-m", "treadle.environments.service.template", str(place)],
                name=f"environment {self._settings.type}",
                log_path=folder / "log",
                cwd=Path.cwd(),
                grace_s=0.0,
            )
            try:
                async with asyncio.timeout(_START_S):
                    control = await self._accepted(listener, self._child)
            except TimeoutError:
                raise self._child.failure(f"was not loaded within {_START_S:g} s") from None
        self._control = control
        loop.add_reader(control, self._receive)

    async def _accepted(self, listener: socket.socket, child: Child) -> socket.socket:
        """Return the connection of a template that has loaded the environment."""
        loop = asyncio.get_running_loop()
        coming = asyncio.create_task(loop.sock_accept(listener))
        while not coming.done():
            await asyncio.wait([coming], timeout=_POLL_S)
            if child.poll() is not None and not coming.done():
                coming.cancel()
                raise child.failure("ended before it was loaded")
        control, _ = coming.result()
        settings = self._settings.model_dump(mode="json")
        await loop.sock_sendall(control, orjson.dumps({"settings": settings}))
        said = await loop.sock_recv(control, MAX_MESSAGE_BYTES)
        answer = orjson.loads(said) if said else {}
        if "failed" in answer:
            control.close()
            raise ConfigError(answer["failed"])
        if not answer:
            control.close()
            raise child.failure("ended while it was loaded")
        return control

    def _receive(self) -> None:
        """Handle one message of the template."""
        assert self._control is not None
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            return self._lose("the process that loads the environment has ended")
        said = orjson.loads(message)
        waiting = self._pending.get(said.get("forked", said.get("failed_fork")))
        if "failed_fork" in said:
            if waiting is not None and not waiting.done():
                waiting.set_exception(OSError(said["why"]))
        elif waiting is not None and not waiting.done():
            waiting.set_result((said["pid"], descriptors.pop()))
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _lose(self, why: str) -> None:
        control, self._control = self._control, None
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
            control.close()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(EngineError(why))
