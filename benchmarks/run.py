"""All benchmarks, one after another, as one table of figures and the bounds that they are meant to keep.

    python benchmarks/run.py                        # about 40 minutes; what docs/measurements.md was made with
    python benchmarks/run.py --sample               # small sizes, about 2 minutes: shows that all of them work
    python benchmarks/run.py --only journal harness --output figures.json

Each is a command of its own with `--help`. They need an otherwise idle machine. A bound that is missed is shown and
changes nothing else: machines differ, and only a benchmark that breaks makes this command fail.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from figures import Figure, read, table

from treadle.core.provenance import git_state, package_versions

HERE = Path(__file__).parent

# Name -> script, arguments of the whole measurement, arguments of the sample.
BENCHMARKS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}


def run_one(name: str, sample: bool) -> list[Figure]:
    """The figures of one benchmark; raises CalledProcessError where it breaks."""
    script, whole, small = BENCHMARKS[name]
    command = [sys.executable, str(HERE / script), "--json", *(small if sample else whole)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return read(done.stdout.splitlines()[-1])


def write_figures(path: Path, figures: dict[str, list[Figure]], sample: bool) -> None:
    """Keep what was measured, with what it was measured on."""
    facts = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sample": sample,
        "commit": git_state(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "packages": package_versions(),
        "figures": {name: [asdict(figure) for figure in found] for name, found in figures.items()},
    }
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and print their figures; returns 1 where one broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--sample", action="store_true", help="small sizes: whether it works, not how fast")
    parser.add_argument("--output", type=Path, help="write the figures with versions and machine to this JSON file")
    options = parser.parse_args(arguments)
    figures: dict[str, list[Figure]] = {}
    broken = []
    for number, name in enumerate(options.only, 1):
        print(f"[{number}/{len(options.only)}] {name} ...", flush=True)
        started = time.monotonic()
        try:
            figures[name] = run_one(name, options.sample)
        except subprocess.CalledProcessError as error:
            broken.append(name)
            print(f"{name} ended with status {error.returncode}; what it said stands above")
            continue
        print(f"{table(figures[name])}\n({time.monotonic() - started:.0f} s)\n", flush=True)
    if options.output:
        write_figures(options.output, figures, options.sample)
    missed = [f"{name}: {one.name}" for name, found in figures.items() for one in found if not one.is_reached]
    print(f"missed: {', '.join(missed)}" if missed else "every bound was kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
