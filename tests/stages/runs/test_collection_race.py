"""Garbage is collected while other processes commit the same content, drop it, and commit it again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from treadle.core.gc.collection import collect
from treadle.core.runs.run import Run
from treadle.core.store.storage import LocalStorage

_PROGRAM = """
import sys
from pathlib import Path
from support.runs.counting_stage import DOUBLING, counting
from treadle.core.store.artifacts import verify_artifact
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run

run = Run.create(sys.argv[1], sys.argv[2], {}, {})
print("begun", flush=True)
number = 0
while number < int(sys.argv[3]) or not Path(sys.argv[4]).exists():
    number += 1
    for instance in (counting(count=number % 3 + 1), DOUBLING):
        record = execute(instance, run)
        refs = [*record.outputs.values(), *(ref.artifact for refs in record.inputs.values() for ref in refs)]
        for ref in refs:
            if problems := verify_artifact(run.storage, ref):
                sys.exit(f"{record.address}: {problems[0]}")
"""
ROUNDS = int(os.environ.get("TREADLE_HISTORIES", "12"))


def test_no_result_references_a_collected_artifact(tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    storage = LocalStorage(root)
    seen_enough = tmp_path / "seen enough"
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(root), name, str(ROUNDS), str(seen_enough)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
    num_removed = 0
    while any(process.poll() is None for process in processes):
        num_removed += len(collect(storage, -60).removed)
        if num_removed > ROUNDS / 3:
            seen_enough.touch()
    ends = [(process.communicate()[1], process.returncode) for process in processes]
    assert ends == [("", 0), ("", 0)]
    collect(storage, -60)
    runs = [Run.open(root, name) for name in ("a", "b")]
    assert not any(problems for run in runs for problems in run.verify().values())
    # The runs may have stopped at different counts.
    named = {ref.digest for run in runs for record in run.records() for ref in record.outputs.values()}
    kept = {digest for kind in ("numbers", "doubles") for digest in storage.names(f"artifacts/{kind}")}
    assert kept == named
