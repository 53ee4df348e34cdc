"""How far a program gets over the limits that are kept from outside, and what keeping them costs a call.

`python -m benchmarks.rollouts.sandbox_limits` prints the most memory and the most files that greedy programs held
before they were ended. With `--against PYTHON`, the interpreter of another version's environment, it calls `print(1)`
in both versions instead, in turn, in blocks of back-to-back calls, and prints medians and the ratio of the blocks'
medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.python import PythonTool

GREEDY = {
    "memory": """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for _ in range(13):
    if os.fork() == 0:
        break
while (address := libc.mmap(None, ctypes.c_size_t(16 << 20), 3, 0x22, -1, ctypes.c_long(0))) not in (None, 2**64 - 1):
    ctypes.memset(address, 1, 16 << 20)
time.sleep(20)
""",
    "files": """
import os
for _ in range(4):
    if os.fork() == 0:
        break
os.mkdir(str(os.getpid()))
os.chdir(str(os.getpid()))
os.close(os.open("file", os.O_CREAT | os.O_WRONLY))
number = 0
while True:
    os.link("file", str(number))
    number += 1
""",
}


class Peak:
    """The most that the only running sandbox of this process held, looked at every 5 ms."""

    def __init__(self) -> None:
        self.mib, self.files = 0.0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        from treadle.agent.sandbox.usage import descendants, usage_of

        while not self._over.wait(0.005):
            for pid in descendants(os.getpid()):
                if _is_first(pid):
                    usage = usage_of(pid, 0)
                    self.mib = max(self.mib, usage.memory_bytes / (1 << 20))
                    self.files = max(self.files, usage.files)


def _is_first(pid: int) -> bool:
    """Whether a process is the first one of its sandbox."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in lines)


async def peaks(repeat: int) -> None:
    """Run the greedy programs; print what each held at most."""
    async with PythonTool(SandboxSettings(packages=(), pool_size=1)) as tool:
        for name, program in GREEDY.items():
            for _ in range(repeat):
                with Peak() as peak:
                    outcome = await tool.call(program, deadline=asyncio.get_running_loop().time() + 60)
                print(f"{name:8} {peak.mib:6.0f} MiB {peak.files:7} files  {outcome.text[-60:]}")


async def serve() -> None:
    """For each number on standard input, make so many calls and print their milliseconds."""
    async with PythonTool(SandboxSettings(packages=())) as tool:
        print("ready", flush=True)
        for line in iter(sys.stdin.readline, ""):
            took = []
            for _ in range(int(line)):
                began = time.perf_counter()
                outcome = await tool.call("print(1)", deadline=asyncio.get_running_loop().time() + 60)
                assert outcome.text == "1", outcome
                took.append(1000 * (time.perf_counter() - began))
            print(json.dumps(took), flush=True)


def compare(other: str, blocks: int, calls: int) -> None:
    """Print the medians of this version and of another one, and the quartiles of the ratio."""
    pythons = {"this": sys.executable, "other": other}
    servers = {
        name: subprocess.Popen(
            [python, "-m", "benchmarks.rollouts.sandbox_limits", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, python in pythons.items()
    }
    took: dict[str, list[float]] = {name: [] for name in servers}
    ratios = []
    for server in servers.values():
        assert server.stdout is not None
        server.stdout.readline()
    for number in range(blocks):
        medians = {}
        for name in sorted(servers, reverse=bool(number % 2)):
            stdin, stdout = servers[name].stdin, servers[name].stdout
            assert stdin is not None and stdout is not None
            stdin.write(f"{calls}\n")
            stdin.flush()
            block = json.loads(stdout.readline())
            took[name] += block
            medians[name] = statistics.median(block)
            time.sleep(0.3)  # Its stock fills up again before the other one is measured.
        ratios.append(medians["this"] / medians["other"])
    for server in servers.values():
        server.communicate()
    for name, values in took.items():
        print(f"{name:6} p50 {statistics.median(values):.1f} ms of {len(values)} calls")
    print("ratio of the blocks' p50, quartiles:", [round(cut, 2) for cut in statistics.quantiles(ratios, n=4)])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="interpreter of another version's environment")
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--calls", type=int, default=12, help="calls in a block")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    elif options.against:
        compare(options.against, options.blocks, options.calls)
    else:
        asyncio.run(peaks(options.repeat))


if __name__ == "__main__":
    main()
