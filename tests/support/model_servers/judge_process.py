"""A judge in a process of its own: `python -m support.model_servers.judge_process LOG`, which prints its URL.

It compares answers literally, labels every step as good, and writes a line to LOG for each request that it answers:
the case. If the file LOG.freeze exists when a request arrives, it deletes that file and stops itself (SIGSTOP) with the
request on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
from support.credit.worked_example import reply
from support.model_servers.freezable import FreezableProcess, server_process, stand_still, trigger_of
from support.servers.scripted_server import RecordedRequest, ScriptedServer


@dataclass
class JudgeProcess(FreezableProcess):
    """A running judge."""

    url: str

    @property
    def cases(self) -> list[str]:
        """The cases that it has judged, in order."""
        return self.log.read_text().splitlines()

    def freeze_at_next_request(self) -> None:
        """Make it stop when it gets a request."""
        trigger_of(self.log).touch()


@contextlib.contextmanager
def judge_process(log: Path) -> Iterator[JudgeProcess]:
    """Run a judge for the duration of the block."""
    with server_process("support.model_servers.judge_process", log) as (pid, url):
        yield JudgeProcess(pid, log, url)


async def _serve(log: Path) -> None:
    def script(recorded: RecordedRequest) -> str:
        with contextlib.suppress(FileNotFoundError):
            trigger_of(log).unlink()
            stand_still()
        assert recorded.messages is not None
        shown = recorded.messages[-1]["content"]
        case = orjson.loads(shown)
        with log.open("a") as file:
            file.write(shown + "\n")
        if "steps" in case:
            return reply("G" * len(case["steps"]))
        is_right = case["predicted_answer"] in case["accepted_answers"].split(" | ")
        return orjson.dumps({"rationale": "", "judgement": "correct" if is_right else "incorrect"}).decode()

    async with ScriptedServer(script, chat_only=True) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
