"""Measure the journal: appends compared with raw grouped appends, and opening it after 200,000 finished rollouts.

    python -m benchmarks.runs.journal [--rollouts 200000] [--folder /tmp] [--json]

Targets: at least a third of the raw rate; opened in 10 s and 1 GiB. The raw floor writes the same payloads with one
`write` each and an fsync every 100 ms, without keys, checksums or index.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.parts.measuring import drop_from_cache
from treadle.core.journal.journal import Journal

UNITS = 5
UNIT_BYTES = 600
ROW_BYTES = 8192


def payloads() -> tuple[bytes, bytes]:
    """Return a unit and a row of typical rollout size."""
    source = random.Random(0)
    return source.randbytes(UNIT_BYTES), source.randbytes(ROW_BYTES)


def write_raw(path: Path, num_rollouts: int) -> float:
    """Return the seconds of the floor."""
    unit, row = payloads()
    started = synced = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(num_rollouts):
        for value in (*[unit] * UNITS, row):
            os.write(descriptor, value)
            if time.perf_counter() - synced >= 0.1:
                os.fsync(descriptor)
                synced = time.perf_counter()
    os.fsync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - started


def write_journal(folder: Path, num_rollouts: int) -> float:
    """Return the seconds of the journal."""
    unit, row = payloads()
    started = time.perf_counter()
    with Journal(folder) as journal:
        for index in range(num_rollouts):
            owner = f"{index:016x}"
            for turn in range(UNITS):
                journal.append(owner, f"llm-{turn}", unit)
            journal.finish(owner, row)
    return time.perf_counter() - started


def open_journal(folder: Path) -> None:
    """Open the journal and print figures. Runs in a process of its own, so that peak memory is that of opening."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    with Journal(folder) as journal:
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(journal.finished(f"{0:016x}")) == ROW_BYTES
        figures = {"seconds": seconds, "cpu_s": cpu_seconds, "peak_mib": peak / 1024, "before_mib": before / 1024}
        print(json.dumps({"finished": journal.num_finished, **figures}))


def compare_appends(folder: Path, num_rollouts: int) -> dict[str, float]:
    """Return records per second of both, as medians of three rounds, and the median of their ratios."""
    num_records = num_rollouts * (UNITS + 1)
    rounds = []
    for attempt in range(3):
        raw = write_raw(folder / f"raw-{attempt}", num_rollouts)
        ours = write_journal(folder / f"few-{attempt}", num_rollouts)
        rounds.append((num_records / raw, num_records / ours, raw / ours))
        (folder / f"raw-{attempt}").unlink()
        shutil.rmtree(folder / f"few-{attempt}")
    raw_per_s, per_s, ratio = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"raw_per_s": raw_per_s, "per_s": per_s, "ratio": ratio}


def measure(folder: Path, num_rollouts: int) -> dict[str, Any]:
    """Measure all figures."""
    result: dict[str, Any] = {"append": compare_appends(folder, min(20_000, num_rollouts))}
    journal = folder / "all"
    write_journal(journal, num_rollouts)
    result["gib"] = sum(path.stat().st_size for path in journal.iterdir()) / 2**30
    for cache in ("cold", "warm"):
        if cache == "cold":
            drop_from_cache(journal)
        command = [sys.executable, "-m", "benchmarks.runs.journal", "--open", str(journal)]
        result[f"open_{cache}"] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


def main() -> None:
    """Measure and print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--json", action="store_true", help="one JSON object, all figures")
    parser.add_argument("--open", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_journal(options.open)
        return
    folder = Path(tempfile.mkdtemp(prefix="treadle-journal-", dir=options.folder))
    try:
        result = measure(folder, options.rollouts)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(result))
        return
    append = result["append"]
    print(f"append: raw {append['raw_per_s']:.0f}/s, journal {append['per_s']:.0f}/s, ratio {append['ratio']:.2f}")
    print(f"journal of {options.rollouts} rollouts: {result['gib']:.2f} GiB")
    for cache in ("cold", "warm"):
        opened = result[f"open_{cache}"]
        print(
            f"open, {cache}: {opened['finished']} finished in {opened['seconds']:.2f} s ({opened['cpu_s']:.2f} s CPU), "
            f"peak {opened['peak_mib']:.0f} MiB ({opened['before_mib']:.0f} MiB before)"
        )


if __name__ == "__main__":
    main()
