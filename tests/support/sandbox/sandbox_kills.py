"""A host process of sandboxes that tests kill: `python -m support.sandbox.sandbox_kills '{"uid": …, "kind": …}'`.

For each line on standard input, `{"marker": n, "stuck": true}`, it forks a process that makes one sandbox after the
other, several at a time, and prints that process's id; after that process is killed, it prints `gone`. The marker is in
the command line of all processes of its sandboxes. A stuck one stops each sandbox half-made, at the moment when
bubblewrap's own child waits for its parent. For `{"sweep": true}` it prints how many left-over sandboxes it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from support.runs.processes import Seen, look
from support.sandbox.sandbox_probes import become

AT_ONCE = 3


def marked(marker: int) -> list[Seen]:
    """Return all processes, whatever their parent is, with the marker in their command line, and their guardian's."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if f'"memory_mb": {marker}'.encode() in words and (seen := look(int(entry.name))):
                found.append(seen)
    return found


def guardians(host: int) -> list[Seen]:
    """Return the guardians that a host process has started, whatever their parent is now.

    A child of a guardian that has not become its program yet has the guardian's command line, and is left out.
    """
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if any(word.endswith(b"guardian_worker.py") for word in words) and str(host).encode() in words:
                found += [seen] if (seen := look(int(entry.name))) else []
    pids = {one.pid for one in found}
    return [one for one in found if one.parent not in pids]


def block_at_info(end: int) -> None:
    """Fill the pipe to which bubblewrap writes before it releases its child."""
    os.set_blocking(end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(end, bytes(4096))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(end, b"\0")
    os.set_blocking(end, True)


async def make_sandboxes(task: dict[str, object], marker: int, stuck: bool) -> None:
    """Start and end sandboxes until killed."""
    from treadle.agent.sandbox.bubblewrap import Launcher, make_launcher
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.sandbox.guardian import Guardian
    from treadle.agent.sandbox.process import SandboxProcess

    class StuckLauncher(Launcher):
        @contextlib.contextmanager
        def command(self, scratch=None, *, eager=True):
            with Launcher.command(self, scratch, eager=eager) as command:
                block_at_info(command.descriptors[-1])
                yield command

    settings = SandboxSettings.model_validate({"kind": task["kind"], "packages": (), "memory_mb": marker})
    launcher = make_launcher(settings)
    if stuck:
        launcher = StuckLauncher(settings, launcher.runtime, launcher.bwrap)
    guardian = Guardian()

    async def make_sandboxes_in_sequence() -> None:
        while True:
            sandbox = await SandboxProcess.start(guardian, replace(launcher), 60.0, eager=False)
            sandbox.kill()
            await sandbox.wait_ended()

    await asyncio.gather(*(make_sandboxes_in_sequence() for _ in range(AT_ONCE)))


def main() -> None:
    """Fork one for each line."""
    from treadle.agent.sandbox.bubblewrap import make_launcher
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.sandbox.leftovers import end_leftovers

    task = json.loads(sys.argv[1])
    become(task.get("uid"))
    make_launcher(
        SandboxSettings(kind=task["kind"], packages=())
    )  # What is found is kept, so that forks begin at once.
    for line in sys.stdin:
        request = json.loads(line)
        if "sweep" in request:
            print(end_leftovers(), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            asyncio.run(make_sandboxes(task, request["marker"], request.get("stuck", False)))
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main()
