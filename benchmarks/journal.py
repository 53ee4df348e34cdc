"""Journal: appends beside raw grouped appends of the same bytes, and opening after 200,000 finished rollouts.

    python benchmarks/journal.py [--rollouts 200000] [--folder /tmp]

Targets: at least a third of the raw rate; opened in 10 s and 1 GiB. The raw floor writes the same payloads with one
`write` each and an fsync every 100 ms, with no keys, checksums or index.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from treadle.core.journal import Journal

UNITS = 5
UNIT_BYTES = 600
ROW_BYTES = 8192


def payloads() -> tuple[bytes, bytes]:
    """A unit and a row of the size that rollouts have."""
    source = random.Random(0)
    return source.randbytes(UNIT_BYTES), source.randbytes(ROW_BYTES)


def write_raw(path: Path, num_rollouts: int) -> float:
    """Seconds for the floor."""
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
    """Seconds for the journal."""
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
    """Run in a process of its own, so that its peak memory is that of opening."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    with Journal(folder) as journal:
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(journal.finished(f"{0:016x}")) == ROW_BYTES
        print(
            f"open: {journal.num_finished} finished in {seconds:.2f} s ({cpu_seconds:.2f} s CPU), "
            f"peak {peak / 1024:.0f} MiB ({before / 1024:.0f} MiB before)"
        )


def drop_from_cache(folder: Path) -> None:
    """Let the kernel forget the files' pages, so that opening reads the disk."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--open", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_journal(options.open)
        return
    folder = Path(tempfile.mkdtemp(prefix="treadle-journal-", dir=options.folder))
    try:
        few = min(20_000, options.rollouts)
        num_records = few * (UNITS + 1)
        for attempt in range(3):
            raw = write_raw(folder / f"raw-{attempt}", few)
            ours = write_journal(folder / f"few-{attempt}", few)
            print(f"append: raw {num_records / raw:.0f}/s, journal {num_records / ours:.0f}/s, ratio {raw / ours:.2f}")
            (folder / f"raw-{attempt}").unlink()
            shutil.rmtree(folder / f"few-{attempt}")
        write_journal(folder / "all", options.rollouts)
        size = sum(path.stat().st_size for path in (folder / "all").iterdir())
        print(f"journal of {options.rollouts} rollouts: {size / 2**30:.2f} GiB")
        drop_from_cache(folder / "all")
        subprocess.run([sys.executable, __file__, "--open", str(folder / "all")], check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
