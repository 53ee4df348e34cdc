"""The process that tries hostile programs: `python sandbox_probes.py '{"uid": …, "kind": …, "names": […]}'`.

It plants what could be stolen, changed or killed, runs the probes, and prints one JSON line about how each ended, what
is left of them, and what they cost the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.sandbox.sandbox_kernel_programs import KERNEL
from support.sandbox.sandbox_memory import MEBIBYTE, MemoryWatch, available_bytes
from support.sandbox.sandbox_programs import BASIC, ENDLESS, FATAL, FLOODS, GLIMPSES, PRELUDE
from support.sandbox.sandbox_small_programs import HELPERS, SMALL

PR_SET_NAME = 15
ENDLESS_LIMIT_S = 1.0
LIMITS: dict[str, object] = {
    "packages": (),
    "memory_mb": 256,
    "scratch_mb": 8,
    "max_processes": 16,
    "max_output_mb": 2,
    "pool_size": 2,
    "max_running": 4,
}

_SMALL_ONES = "small ones"
ENDING = BASIC | KERNEL | SMALL
ALL = ENDING | ENDLESS | FLOODS | FATAL | GLIMPSES


def become(uid: int | None) -> None:
    """Drop root for good."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def survivors(comm: str) -> list[int]:
    """Ids of processes that carry the name."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == comm:
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Ids of all processes below one."""
    children = []
    with contextlib.suppress(OSError):
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in descendants(child)]


@dataclass
class Planted:
    """Targets that programs could steal, change, reach or kill."""

    folder: Path
    canary: str
    victim: subprocess.Popen[bytes]
    listeners: list[socket.socket]

    def facts(self) -> dict[str, object]:
        """Return facts given to probes, so that they need not search."""
        return {
            "secret": str(self.folder / "secret"),
            "owned": str(self.folder / "owned"),
            "folder": str(self.folder),
            "unix": str(self.folder / "stream"),
            "datagram": str(self.folder / "datagram"),
            "canary": "?" + self.canary[1:],  # Without the one character, so that finding it proves something.
            "abstract": self.canary,
            "checkout": str(Path(__file__).resolve().parents[3]),
            "tcp_port": self.listeners[0].getsockname()[1],
            "pid": os.getpid(),
            "parent": os.getppid(),
            "victim": self.victim.pid,
            "name": os.uname().nodename,
        }

    def harm(self) -> list[str]:
        """Return what was changed despite the confinement."""
        owned = self.folder / "owned"
        found = [] if self.victim.poll() is None else ["the victim is dead"]
        if self.victim.poll() is None and (
            os.getpriority(os.PRIO_PROCESS, self.victim.pid) != os.getpriority(os.PRIO_PROCESS, 0)
        ):
            found.append("the victim has another priority")
        try:
            facts = owned.read_text(), owned.stat().st_mode & 0o777, owned.stat().st_nlink
        except OSError as error:
            facts = str(error), 0, 0
        if facts != ("whole", 0o666, 1):
            found.append(f"the file is changed: {facts}")
        found += [str(path) for path in self.folder.iterdir() if path.name not in _PLANTED_FILES]
        return found


_PLANTED_FILES = ("secret", "owned", "stream", "datagram")


@contextlib.contextmanager
def planted() -> Iterator[Planted]:
    """Plant it all; take it away at the end."""
    canary = "x" + secrets.token_hex(12)
    os.environ["TREADLE_CANARY"] = canary
    folder = Path(tempfile.mkdtemp(prefix="sandbox-probes-"))
    folder.chmod(0o777)
    (folder / "secret").write_text(canary)
    (folder / "owned").write_text("whole")
    (folder / "owned").chmod(0o666)
    listeners = [socket.create_server(("127.0.0.1", 0))]
    for kind, address in (
        (socket.SOCK_STREAM, "\0" + canary),
        (socket.SOCK_STREAM, str(folder / "stream")),
        (socket.SOCK_DGRAM, str(folder / "datagram")),
    ):
        listeners.append(socket.socket(socket.AF_UNIX, kind))
        listeners[-1].bind(address)
        if kind == socket.SOCK_STREAM:
            listeners[-1].listen()
    for name in ("stream", "datagram"):
        (folder / name).chmod(0o777)
    inherited = os.open(folder / "secret", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    with subprocess.Popen(["sleep", "300"]) as victim:
        try:
            yield Planted(folder, canary, victim, listeners)
        finally:
            victim.kill()
            os.close(inherited)
            for listener in listeners:
                listener.close()
            shutil.rmtree(folder, ignore_errors=True)


def together(names: list[str]) -> str:
    """Return the body of one program that runs several small probes one after the other."""
    return f"""
import io
for name, body in { ({name: SMALL[name] for name in names})!r}.items():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(body, globals())
        except Exception as error:
            print("broken", repr(error))
    if printed.getvalue():
        print(name, printed.getvalue()[:60].replace(chr(10), " "), sep=": ")
"""


def apart(names: list[str], outcome: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return an outcome for each probe of a program that ran several; the common one if they cannot be separated."""
    if outcome["status"] != "ok" or "characters left out" in outcome["text"]:
        return dict.fromkeys(names, outcome)
    said = dict(line.split(": ", 1) for line in outcome["text"].splitlines() if ": " in line)
    return {name: outcome | {"text": said.get(name, "held")} for name in names}


def peak_memory_kib() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


async def try_probes(kind: str, names: list[str], alone: bool = False) -> dict[str, Any]:
    """Run the probes concurrently, or one by one, and return how each ended."""
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.tools.python import PythonTool

    settings = SandboxSettings.model_validate({"kind": kind} | LIMITS | {"pool_size": min(2, len(names))})
    outcomes: dict[str, dict[str, object]] = {}
    turn = asyncio.Semaphore(1 if alone else len(names))
    with planted() as prey:
        spare = 1100 if kind == "landlock" and os.geteuid() else 0
        host = prey.facts() | {"level": kind, "max_threads": settings.max_processes + spare} | LIMITS
        before = set(descendants(os.getpid()))
        async with contextlib.AsyncExitStack() as stack:
            patient = await stack.enter_async_context(PythonTool(settings))
            hasty = PythonTool(settings, time_limit_s=ENDLESS_LIMIT_S)
            if not ENDLESS.keys().isdisjoint(names):
                await stack.enter_async_context(hasty)
            watch = stack.enter_context(MemoryWatch())
            memory_kib = peak_memory_kib()

            async def attempt(name: str, body: str) -> None:
                comm = f"p{secrets.token_hex(6)}"
                program = f"HOST = {host | {'comm': comm}!r}\n{PRELUDE}{HELPERS}{body}\nprint('held')\n"
                tool = hasty if name in ENDLESS else patient
                async with turn:
                    if alone:
                        await asyncio.sleep(0.5)  # The sandbox in place of the last one starts.
                    available = watch.begin()
                    outcome = await tool.call(program, deadline=asyncio.get_running_loop().time() + 60)
                    most = available - watch.least_available_bytes
                    await asyncio.sleep(0.5 * alone)
                    kept = available - available_bytes()
                outcomes[name] = {
                    "status": outcome.status,
                    "text": outcome.text,
                    "seconds": outcome.seconds,
                    "survivors": len(survivors(comm)),
                    "memory_mib": watch.most_bytes.get(comm, 0) / MEBIBYTE,
                    "machine_mib": most / MEBIBYTE,
                    "machine_kept_mib": kept / MEBIBYTE,
                }

            small = [name for name in SMALL if name in names]
            bodies = {name: body for name, body in ALL.items() if name in names}
            if len(small) > 1:
                bodies = {name: body for name, body in bodies.items() if name not in small}
                bodies[_SMALL_ONES] = together(small)
            await asyncio.gather(*(attempt(name, body) for name, body in bodies.items()))
            if _SMALL_ONES in outcomes:
                outcomes |= apart(small, outcomes.pop(_SMALL_ONES))
            grown_mib = (peak_memory_kib() - memory_kib) / 1024
        left = sorted(set(descendants(os.getpid())) - before)
        return {
            "uid": os.geteuid(),
            "outcomes": outcomes,
            "left": left,
            "harm": prey.harm(),
            "host_memory_mib": grown_mib,
        }


async def run_programs(task: dict[str, Any]) -> dict[str, Any]:
    """Run harmless programs in turn, or `at_once` in sandboxes that all exist before; return outcomes by program."""
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.tools.python import PythonTool

    programs = task["programs"]
    settings = SandboxSettings(kind=task["kind"], packages=task["packages"], pool_size=2)
    at_once = settings.pool_size if task.get("at_once") else 1
    outcomes = {}
    async with PythonTool(settings, max_output_chars=task.get("max_output_chars", 1000)) as tool:
        while tool._pool._warm.qsize() < at_once:
            await asyncio.sleep(0.01)
        for batch in (programs[start : start + at_once] for start in range(0, len(programs), at_once)):
            deadline = asyncio.get_running_loop().time() + 60
            ended = await asyncio.gather(*(tool.call(program, deadline=deadline) for program in batch))
            outcomes |= {
                program: {"status": outcome.status, "text": outcome.text}
                for program, outcome in zip(batch, ended, strict=True)
            }
    return {"uid": os.geteuid(), "outcomes": outcomes}


async def hold(kind: str) -> None:
    """Keep one program running and others warm; print the processes involved, then wait to be killed."""
    from treadle.agent.sandbox.config import SandboxSettings
    from treadle.agent.sandbox.pool import SandboxPool

    comm = f"p{secrets.token_hex(6)}"
    async with SandboxPool(SandboxSettings.model_validate({"kind": kind} | LIMITS)) as pool:
        body = f"import ctypes, os, time\nctypes.CDLL(None).prctl({PR_SET_NAME}, {comm.encode()!r})\n"
        body += "os.fork()\n" * (kind != "landlock")
        running = asyncio.create_task(pool.run(body + "time.sleep(60)", time_limit_s=60))
        while len(survivors(comm)) < (1 if kind == "landlock" else 2):
            await asyncio.sleep(0.01)
        print(json.dumps({"pid": os.getpid(), "held": descendants(os.getpid())}), flush=True)
        await running


def verdict(name: str, outcome: dict[str, Any]) -> str:
    """One word or two for how a probe ended, as the documentation has it."""
    if "ESCAPED" in outcome["text"]:
        return "seen" if name in GLIMPSES else "ESCAPED"
    if outcome["status"] == "timeout":
        return "time limit"
    if outcome["status"] == "error":
        return "killed" if "killed" in outcome["text"] else "refused"
    return "held"


def main() -> None:
    """Read what to do from the command line, do it, print the outcome."""
    task = json.loads(sys.argv[1])
    become(task.get("uid"))
    if task.get("hold"):
        asyncio.run(hold(task["kind"]))
        return
    if task.get("programs"):
        print(json.dumps(asyncio.run(run_programs(task))))
        return
    kind, names = task.get("kind", "bubblewrap"), task.get("names") or list(ALL)
    # What gets away takes the others' prey with it.
    groups = [[name] for name in names] if kind == "none" else [names]
    reports = [asyncio.run(try_probes(kind, group, task.get("alone", False))) for group in groups]
    merged = reports[0]
    for report in reports[1:]:
        merged["outcomes"] |= report["outcomes"]
        merged["harm"] += report["harm"]
    print(json.dumps(merged))


if __name__ == "__main__":
    main()
