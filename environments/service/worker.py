"""Hold one instance in a process that the template forked, and answer the service over a socket.

A request is `{"op", ...}`; the reply is `{"ok": value}`, `{"refused": line}` or `{"failed": {kind, message, trace}}`.
The process ends after `close`, and when the service closes the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import traceback
from collections.abc import Mapping
from typing import Any

from treadle.agent.contract import Task
from treadle.environments.service.episodes import open_host
from treadle.environments.service.errors import RequestUnfit
from treadle.environments.service.frames import FrameEnded, pack, receive
from treadle.environments.service.hosting import EnvironmentHost, HeldInstance
from treadle.environments.settings import EnvironmentSettings


def run(settings: EnvironmentSettings, channel: socket.socket) -> None:
    """Answer requests until the last one."""
    asyncio.run(_serve(settings, channel))


async def _serve(settings: EnvironmentSettings, channel: socket.socket) -> None:
    channel.setblocking(False)
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        worker = Worker(settings, stack)
        with contextlib.suppress(FrameEnded, ConnectionError):
            while not worker.is_closed:
                await loop.sock_sendall(channel, await worker.answer(await receive(loop, channel)))


class Worker:
    """The instance of this process, and the environment that it belongs to."""

    def __init__(self, settings: EnvironmentSettings, stack: contextlib.AsyncExitStack) -> None:
        self.is_closed = False
        self._settings = settings
        self._stack = stack
        self._host: EnvironmentHost | None = None
        self._instance: HeldInstance | None = None

    async def answer(self, request: Mapping[str, Any]) -> bytes:
        """Return the frame of the reply to a request."""
        try:
            return pack({"ok": await self._result(request)})
        except RequestUnfit as unfit:
            return pack({"refused": str(unfit)})
        except Exception as error:  # noqa: BLE001 - any error of foreign code is told to the service
            trace = "".join(traceback.format_exception(error))
            return pack({"failed": {"kind": type(error).__name__, "message": str(error), "trace": trace}})

    async def _result(self, request: Mapping[str, Any]) -> Any:
        op, params = request["op"], request.get("params", {})
        if op == "close":
            self.is_closed = True
            return None if self._instance is None else await self._instance.close()
        host = await self._opened()
        if op == "tasks":
            return await host.tasks(request["split"], request["seed"], params)
        if op == "start":
            self._instance = host.instance(Task.from_row(request["task"]), request["instance_id"])
            return await self._instance.start(params)
        assert self._instance is not None
        return await act(self._instance, op, request.get("messages", {}), params)

    async def _opened(self) -> EnvironmentHost:
        if self._host is None:
            host = await self._stack.enter_async_context(open_host(self._settings))
            self._host = host
            return host
        return self._host


async def act(instance: HeldInstance, op: str, messages: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """Carry out a call of the interface on an instance that has started."""
    if op == "step":
        return await instance.step(messages, params)
    if op == "evaluate":
        return await instance.evaluate(messages, params)
    return await instance.get_info(messages, params)


def end() -> None:
    """End the process without the interpreter's cleanup, whose handlers belong to the template."""
    os._exit(0)
