"""Start the program that embeds pictures, in the Python of an engine that has torch, and ask it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal

import orjson

from treadle.core.engines.cache import quiet
from treadle.core.engines.environments import engine_environ, environment_path, python_of
from treadle.core.engines.own_code import own_code
from treadle.core.engines.process import start_child
from treadle.core.errors import ToolError

Measure = Literal["clip", "efficientnet-lite0"]
ENGINE, WEIGHTS = "serve", "similarity"
"""Engines: the one that has torch and CLIP's code, and the one that has EfficientNet-Lite0."""
_PROGRAM = "treadle.environments.scorers.similarity.program"
_START_S = 600.0
_MAX_LINE_BYTES = 64 << 20


class Embedder:
    """Connection to the running program, which answers one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lock = asyncio.Lock()

    async def vectors(self, pictures: Sequence[bytes]) -> list[list[float]]:
        """Return the vector of each picture, PNG. Raises ToolError if the program fails or has ended."""
        request = orjson.dumps({"pictures": [base64.b64encode(one).decode() for one in pictures]})
        async with self._lock:
            try:
                self._writer.write(request + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            except (OSError, ValueError) as error:
                raise ToolError(f"the program that embeds pictures does not answer: {error}") from None
        if not line.endswith(b"\n"):
            raise ToolError("the program that embeds pictures ended; run the same command again")
        reply = orjson.loads(line)
        if "error" in reply:
            raise ToolError(f"pictures cannot be embedded: {reply['error']}")
        return list(reply["vectors"])


@contextlib.asynccontextmanager
async def open_embedder(measure: Measure, model: str, *, crops: bool) -> AsyncIterator[Embedder]:
    """Run the program that embeds pictures for the duration of the block.

    Raises EngineError if an engine that it needs is not installed, or the program does not start.
    """
    python = python_of(ENGINE)
    paths = [str(own_code()), *([_packages()] if measure == "efficientnet-lite0" else [])]
    environ = engine_environ({"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"})
    with tempfile.TemporaryDirectory(prefix="treadle-similarity-") as name:
        address = Path(name, "socket")
        command = [str(python), "-m", _PROGRAM, str(address), measure, model, "crops" if crops else "whole"]
        child = await asyncio.to_thread(
            start_child, command, name="similarity", log_path=Path(name, "log"), env=environ, cwd=Path(name)
        )
        try:
            await asyncio.to_thread(child.wait_until, lambda _: address.exists(), _START_S, quiet)
            reader, writer = await asyncio.open_unix_connection(address, limit=_MAX_LINE_BYTES)
            try:
                yield Embedder(reader, writer)
            finally:
                writer.close()
        finally:
            await asyncio.to_thread(child.stop)


def _packages() -> str:
    """Return the folder with the packages of EfficientNet-Lite0. Raises EngineError if they are not installed."""
    python_of(WEIGHTS)
    (folder,) = environment_path(WEIGHTS).glob("lib/python3*/site-packages")
    return str(folder)
