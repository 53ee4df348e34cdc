"""Serve environments in the process of a test, or in one of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from support.environments.strict_client import StrictClient

from treadle.environments.registry import ENVIRONMENTS
from treadle.environments.service import server
from treadle.environments.service.service import EnvironmentService
from treadle.environments.service.settings import EnvironmentServiceSettings

ODD = f"{Path(__file__).with_name('odd_envs.py')}:Odd"
NOOP = f"{Path(__file__).with_name('odd_envs.py')}:Noop"


@contextlib.asynccontextmanager
async def served(*types: str, **settings: Any) -> AsyncIterator[tuple[StrictClient, EnvironmentService]]:
    """Serve types in this process; yield a client and the service."""
    environments = {Path(name).name: ENVIRONMENTS.parse(name) for name in types}
    service = EnvironmentService(EnvironmentServiceSettings(port=0, **settings), environments)
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(server.run_until(service, stop, ready.set_result))
    await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
    try:
        if not ready.done():
            running.result()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            yield StrictClient(session, ready.result()), service
    finally:
        stop.set()
        await running


class ServedProcess:
    """`treadle environment serve` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("treadle")), "environment", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if "http://" not in self.line:
            raise AssertionError(self.process.communicate()[1])
        self.url = self.line.split("Starting server on ")[1].split(" ")[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self) -> ServedProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return os.stat(f"/proc/{pid}") is not None and b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
