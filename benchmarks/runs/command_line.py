"""Measure the start-up time of the command line: `treadle --help` in new processes, compared with an empty Python.

    python -m benchmarks.runs.command_line [--times 10]

Reports the fastest of several runs: slower ones were delayed by other processes or cold file caches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parts.figures import Figure, add_json_option, publish

TREADLE = Path(sys.executable).with_name("treadle")


def best_s(command: Sequence[str], times: int) -> float:
    """Return the wall time of the fastest of several runs."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - started)
    return min(taken)


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    add_json_option(parser)
    options = parser.parse_args()
    empty_s = best_s([sys.executable, "-c", ""], options.times)
    help_s = best_s([str(TREADLE), "--help"], options.times)
    figures = [
        Figure(name="treadle --help", value=help_s, unit="s", at_most=0.3),
        Figure(name="python -c ''", value=empty_s, unit="s"),
    ]
    publish(figures, options.json)


if __name__ == "__main__":
    main()
