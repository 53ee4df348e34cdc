"""Measure what commands without work cost in new processes, compared with an empty Python.

    python -m benchmarks.runs.command_line [--times 10]

The run that they read is a finished evaluation of the sample configuration. Reports the fastest of several runs:
slower ones were delayed by other processes or cold file caches. CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.parts.figures import Figure, add_json_option, publish
from treadle.core.runs.run import Run

TREADLE = str(Path(sys.executable).with_name("treadle"))
CONFIG = Path(__file__).parents[2] / "configs" / "smoke.toml"
RUN = "smoke"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the fastest run of a command."""

    wall_s: float
    cpu_s: float


def best(command: Sequence[str], times: int) -> Cost:
    """Run a command several times and return the least wall and CPU time."""
    walls, cpus = [], []
    for _ in range(times):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        walls.append(time.perf_counter() - started)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return Cost(min(walls), min(cpus))


def commands(root: str) -> dict[str, list[str]]:
    """Return the commands that are measured by name; make the run that they read."""
    where = ["--run", RUN, "--root", root]
    subprocess.run([TREADLE, "run", str(CONFIG), *where], check=True, stdout=subprocess.DEVNULL)
    run = Run.open(root, RUN)
    record = next(one for one in run.records() if "rollouts" in one.outputs)
    key = next(iter(run.rows(record.outputs["rollouts"]).rows(("rollout_key",))))["rollout_key"]
    return {
        "treadle status": [TREADLE, "status", "--root", root],
        "treadle status --run": [TREADLE, "status", *where],
        "treadle show": [TREADLE, "show", key, *where],
        "treadle run without work": [TREADLE, "run", *where],
    }


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    add_json_option(parser)
    options = parser.parse_args()
    empty = best([sys.executable, "-c", ""], options.times)
    shown = best([TREADLE, "--help"], options.times)
    figures = [
        Figure(name="treadle --help", value=shown.wall_s, unit="s", at_most=0.3),
        Figure(name="python -c ''", value=empty.wall_s, unit="s"),
    ]
    with tempfile.TemporaryDirectory() as root:
        for name, command in commands(root).items():
            cost = best(command, options.times)
            figures += [
                Figure(name=f"{name}: CPU", value=cost.cpu_s, unit="s", at_most=1.0),
                Figure(name=f"{name}: CPU relative to python -c ''", value=cost.cpu_s / empty.cpu_s),
            ]
    publish(figures, options.json)


if __name__ == "__main__":
    main()
