"""Scripted chat services in a process of their own, which can stand still: `... script_process LOG MODULE:NAME`.

NAME is a mapping from the name of a model to its script. The process prints the URL of each model as JSON, and writes a
line to LOG for each request that arrives: the model and the request's body. If LOG.freeze has a number, the process
stops itself (SIGSTOP) when so many requests have arrived, with the last of them on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from support.model_servers.freezable import FreezableProcess, server_process, stand_still, trigger_of
from support.servers.scripted_server import Item, RecordedRequest, Script, ScriptedServer
from support.tables.given_questions import TOKENIZER


@dataclass
class ScriptProcess(FreezableProcess):
    """Running services, with their URLs by model."""

    urls: Mapping[str, str]
    num_requests: int = 0
    """Number of requests that `arrived` has returned."""
    _read_bytes: int = 0

    def arrived(self) -> list[tuple[str, dict[str, Any]]]:
        """Return model and body of each request since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return []
        self._read_bytes += len(whole) + 1
        found = [tuple(orjson.loads(line)) for line in whole.split(b"\n")]
        self.num_requests += len(found)
        return found

    def freeze_after(self, number: int) -> None:
        """Let it stand still once so many further requests have arrived."""
        self.arrived()
        unfinished = self.log.with_suffix(".tmp")
        unfinished.write_text(str(self.num_requests + number))
        unfinished.replace(trigger_of(self.log))


@contextlib.contextmanager
def script_process(log: Path, scripts: str) -> Iterator[ScriptProcess]:
    """Run the services of a mapping, `module:NAME`, for the duration of the block."""
    with server_process("support.model_servers.script_process", log, scripts) as (pid, urls):
        yield ScriptProcess(pid, log, orjson.loads(urls))


def _logged(model: str, script: Callable[[RecordedRequest], Any], log: Path, counted: Iterator[int]) -> Script:
    async def answer(request: RecordedRequest) -> Item:
        with log.open("ab") as file:
            file.write(orjson.dumps([model, request.body]) + b"\n")
        number = next(counted)
        with contextlib.suppress(FileNotFoundError):
            if number >= int(trigger_of(log).read_text()):
                trigger_of(log).unlink()
                stand_still()
        item = script(request)
        return await item if inspect.isawaitable(item) else item

    return answer


async def _serve(log: Path, scripts: str) -> None:
    module, _, name = scripts.partition(":")
    counted, options = itertools.count(1), {"codec": TOKENIZER, "max_model_len": 32768, "chat_only": True}
    async with contextlib.AsyncExitStack() as stack:
        urls = {}
        for model, script in getattr(importlib.import_module(module), name).items():
            server = ScriptedServer(_logged(model, script, log, counted), model=model, **options)
            urls[model] = (await stack.enter_async_context(server)).url
        print(orjson.dumps(urls).decode(), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
