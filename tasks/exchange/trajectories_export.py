"""Export rollouts, joined with everything known about them, as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.core.errors import RunError
from treadle.core.runs.run import Run
from treadle.core.store.exported import new_folder, write_facts
from treadle.tasks.analysis.trajectories import COLUMNS, SCHEMA, trajectory_batches
from treadle.tasks.exchange.parquet_parts import write_parts


def export_trajectories(
    run: Run, target: Path, *, model: str | None = None, iteration: int | None = None, replace: bool = False
) -> dict[str, Any]:
    """Write `trajectories` as a data set into a new folder, whose parquet is in `data/`; return a summary.

    Holds a row group in memory. Raises RunError if no rollouts have finished, DataError and ArtifactError for damaged
    files, ConfigError and StorageError as `new_folder` does.
    """
    with new_folder(target, replace=replace) as folder:
        batches = trajectory_batches(run, model=model, iteration=iteration)
        num_rows = write_parts(batches, SCHEMA, folder)
        if not num_rows:
            raise RunError(f"run {run.run_id} has no rollouts")
        (folder / "README.md").write_text(_card(run.run_id, num_rows), encoding="utf-8")
        facts = {"kind": "trajectories", "run": run.run_id, "num_rows": num_rows}
        write_facts(folder, facts)
    return {**facts, "folder": str(target)}


def _card(run_id: str, num_rows: int) -> str:
    lines = ["---", "configs:", "- config_name: default", '  data_files: "data/*.parquet"', "---", ""]
    lines += ["# trajectories", "", f"{num_rows:,} rollouts of run {run_id}, joined with questions and verdicts.", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {doc} |" for name, (kind, doc) in COLUMNS.items()), ""])
