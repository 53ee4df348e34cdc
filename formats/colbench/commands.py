"""Define `treadle import colbench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.options import json_option
from treadle.core.untrusted.sanitize import sanitize, sanitized_json


@click.group(
    "colbench",
    short_help="Programming tasks and dialogues of ColBench.",
    epilog="Example:  treadle import colbench tasks test.jsonl --out tasks --split heldout --limit 1000",
)
def import_command() -> None:
    """Import files of ColBench (arXiv 2503.15478), which you bring yourself."""


@import_command.command(
    "tasks",
    short_help="Tasks, as questions with hidden references and tests.",
    epilog="Example:  treadle import colbench tasks test.jsonl --out tasks --split heldout --limit 1000",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet."
)
@click.option("--split", type=click.Choice(["train", "heldout"]), help="Split of all tasks; default: that of the run.")
@click.option("--limit", type=click.IntRange(min=1), help="Number of tasks to take from the start.")
@click.option("--force", is_flag=True, help="Replace an earlier import in that folder.")
@json_option
def import_tasks_command(source: Path, out: Path, force: bool, as_json: bool, **given: Any) -> None:
    """Write tasks as OUT/tasks.jsonl, and OUT/questions.toml, which a run of colbench/backend takes as configuration.

    FILE (JSON, JSON Lines or parquet) has rows with problem_description, ground_truth and test_cases; other fields are
    kept, hidden. Published figures are over the first 1,000 rows of the test file.
    """
    from treadle.formats.colbench.tasks import SOURCES_FILE, import_tasks

    count = import_tasks(source, out, replace=force, **given)
    told = {"folder": str(out), "configuration": str(out / SOURCES_FILE), "num_tasks": count}
    click.echo(sanitized_json(told) if as_json else sanitize(f"{out / SOURCES_FILE}: {count:,} tasks"))
