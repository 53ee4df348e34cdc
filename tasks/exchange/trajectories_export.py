"""Export rollouts, joined with all that is known of them, as a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.core.errors import RunError
from treadle.core.runs.run import Run
from treadle.core.store.exported import new_folder, write_facts
from treadle.tasks.analysis.run_results import RunResults
from treadle.tasks.analysis.trajectories import COLUMNS

_FILE = "data/trajectories.parquet"


def export_trajectories(
    run: Run, target: Path, *, model: str | None = None, iteration: int | None = None, replace: bool = False
) -> dict[str, Any]:
    """Write `trajectories` as a data set into a new folder, whose parquet is in `data/`; return a summary.

    Raises RunError if no rollouts have finished, ConfigError and StorageError as `new_folder` does.
    """
    import pyarrow.parquet as pq

    rows = RunResults(run).trajectories(model=model, iteration=iteration).to_arrow()
    if not rows.num_rows:
        raise RunError(f"run {run.run_id} has no rollouts")
    facts = {"kind": "trajectories", "run": run.run_id, "num_rows": rows.num_rows}
    with new_folder(target, replace=replace) as folder:
        (folder / _FILE).parent.mkdir()
        pq.write_table(rows, folder / _FILE, compression="zstd")
        (folder / "README.md").write_text(_card(run.run_id, rows.num_rows), encoding="utf-8")
        write_facts(folder, facts)
    return {**facts, "folder": str(target)}


def _card(run_id: str, num_rows: int) -> str:
    lines = ["---", "configs:", "- config_name: default", '  data_files: "data/*.parquet"', "---", ""]
    lines += ["# trajectories", "", f"{num_rows:,} rollouts of run {run_id}, joined with questions and verdicts.", ""]
    lines += ["| column | type | meaning |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {doc} |" for name, (kind, doc) in COLUMNS.items()), ""])
