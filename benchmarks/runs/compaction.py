"""Measure compaction: writing rows into an artifact, compared with writing the same rows with plain pyarrow.

    python -m benchmarks.runs.compaction [--rollouts 20000] [--json]

Target: at least a third of the floor's rate, with memory that does not grow with the rows. The floor converts all rows
into one table and writes it with zstd: no checks, keys, hashes or fsync.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treadle.core.store.artifacts import ArtifactWriter
from treadle.core.store.storage import LocalStorage
from treadle.environments.rollouts.tables import ROLLOUTS


def rows(num_rollouts: int) -> Iterator[dict[str, Any]]:
    """Yield rollouts of about 400 tokens."""
    sizes = {pa.string(): "word ", pa.int32(): 7, pa.int64(): 7, pa.bool_(): False, pa.float64(): 0.5}
    for index in range(num_rollouts):
        row: dict[str, Any] = {}
        for field in ROLLOUTS.schema:
            row[field.name] = [] if pa.types.is_list(field.type) else sizes[field.type]
        numbers = [index % 127, 1, 2, 3] * 100
        sample = {"prompt_ids": numbers, "training_prompt_ids": None, "ids": numbers, "origins": numbers}
        row["samples"] = [sample | {"turn_starts": [], "spans": []}]
        row |= {"rollout_key": f"{index:016x}", "text": f"step {index} " * 150, "segments": f"[{index}]" * 100}
        yield row


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="one JSON object, all figures")
    options = parser.parse_args()
    num_rollouts = options.rollouts
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        made = list(rows(1000))
        writing_s = (time.perf_counter() - started) * num_rollouts / 1000
        started = time.perf_counter()
        writer = ArtifactWriter(LocalStorage(Path(folder)), ROLLOUTS, made_by="benchmark")
        for row in rows(num_rollouts):
            writer.write([row])
        writer.commit()
        ours = time.perf_counter() - started - writing_s
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        made = list(rows(num_rollouts))
        started = time.perf_counter()
        pq.write_table(
            pa.Table.from_pylist(made, schema=ROLLOUTS.schema), f"{folder}/plain.parquet", compression="zstd"
        )
        plain = time.perf_counter() - started
        grown_mib = (peak - before) / 1024
        figures = {"plain_per_s": num_rollouts / plain, "per_s": num_rollouts / ours, "ratio": plain / ours}
        if options.json:
            print(json.dumps({**figures, "grown_mib": grown_mib}))
            return
        print(
            f"compaction: plain {figures['plain_per_s']:.0f} rows/s, ours {figures['per_s']:.0f} rows/s, "
            f"ratio {figures['ratio']:.2f}; memory grew by {grown_mib:.0f} MiB"
        )


if __name__ == "__main__":
    main()
