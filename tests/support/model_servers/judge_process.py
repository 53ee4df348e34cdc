"""A judge in a process of its own: `python -m support.model_servers.judge_process LOG`, which prints its URL.

It compares answers literally, labels every step as good, and writes a line to LOG for each request that it answers:
the case. If the file LOG.freeze exists when a request arrives, it deletes that file and stops itself (SIGSTOP) with the
request on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
from support.credit.worked_example import reply
from support.runs.processes import look
from support.servers.scripted_server import RecordedRequest, ScriptedServer


@dataclass(frozen=True)
class JudgeProcess:
    """A running judge."""

    url: str
    pid: int
    log: Path

    @property
    def cases(self) -> list[str]:
        """The cases that it has judged, in order."""
        return self.log.read_text().splitlines()

    def freeze_at_next_request(self) -> None:
        """Make it stop when it gets a request."""
        _trigger(self.log).touch()

    def is_frozen(self) -> bool:
        """Return whether it stands still."""
        seen = look(self.pid)
        return seen is not None and seen.state == "T"

    def thaw(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)


@contextlib.contextmanager
def judge_process(log: Path) -> Iterator[JudgeProcess]:
    """Run a judge for the duration of the block."""
    log.touch()
    command = [sys.executable, "-m", "support.model_servers.judge_process", str(log)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as process:
        try:
            assert process.stdout is not None
            yield JudgeProcess(process.stdout.readline().strip(), process.pid, log)
        finally:
            process.kill()


def _trigger(log: Path) -> Path:
    return log.with_suffix(".freeze")


async def _serve(log: Path) -> None:
    def script(recorded: RecordedRequest) -> str:
        with contextlib.suppress(FileNotFoundError):
            _trigger(log).unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
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
