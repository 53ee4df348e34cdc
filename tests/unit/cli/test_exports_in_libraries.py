"""Every kind of export opens in the libraries that people analyse with; a new kind needs an entry here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.preferences.pair_rows import pair_row
from support.tables.page_runs import Scored, counted_run, put_stage
from support.tables.pool_tables import pool_row
from support.tables.rl_tables import example_rows
from support.tables.score_tables import called, put_rows, score
from support.tables.sft_tables import sft_row
from support.tables.table_readers import assert_all_count, assert_json_read

from treadle.cli.commands.export import export
from treadle.cli.commands.export_rows import ROW_FORMATS
from treadle.core.runs.run import Run
from treadle.datagen.pools.tables import POOL_EVENTS, POOLS
from treadle.datagen.sft_rows.tables import SFT_ROWS
from treadle.rl.preferences.tables import PREFERENCES
from treadle.rl.selection.tables import RL_ROWS

NUM_ROWS = 3
SCHEMAS = [
    {"name": tool, "description": "Find.", "parameters": {"type": "object", "properties": {tool: {"type": kind}}}}
    for tool, kind in (("search", "string"), ("count", "integer"))
]
FOLDERS: dict[str, list[str]] = {
    "dataset": ["questions"],
    "trajectories": [],
    "rl_rows": [],
    "sft_rows hf": ["--format", "hf"],
    "afm": [],
}
"""Exports with parquet in `data`, and their arguments."""
JSON_FILES = {
    **{f"sft_rows {name}": f"{name}.jsonl" for name in ROW_FORMATS if name != "hf"},
    "et-agent pools": "pools.json",
    "et-agent rollouts": "rollouts.json",
    "answers": "answers.jsonl",
    "preferences": "pairs.jsonl",
}
"""Exports with rows as JSON, and the file."""
OTHERS = {"model", "report", "web_record", "et-agent report"}
"""A checkpoint; single files that test_report_formats reads; an artifact, which test_open_run reads like all others."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with rows for all exports; texts, schemas and columns differ from row to row."""
    keys = [f"q{number}" for number in range(NUM_ROWS)]
    scored = [score(f"r-{key}", key, bool(place), **called(search=place)) for place, key in enumerate(keys)]
    run = counted_run(tmp_path_factory.mktemp("outputs"), "first", [Scored(scored, segments=[("answer", "é\u2028 1")])])
    pools = [pool_row(f"p-{key}", key, prediction="" if place else "1") for place, key in enumerate(keys)]
    put_stage(run, "1/pools", {POOLS: pools, POOL_EVENTS: []}, metrics={})
    rows = [
        sft_row(key, said=4 + place, tool_schemas=json.dumps(SCHEMAS[:place]), parents=["p"] * place)
        for place, key in enumerate(keys)
    ]
    put_rows(run, "1/sft_rows", SFT_ROWS, rows)
    put_rows(run, "1/preferences@turn", PREFERENCES, [pair_row(number) for number in range(NUM_ROWS)])
    put_rows(run, "1/selection@phase-1", RL_ROWS, example_rows(NUM_ROWS))
    return run


def exported(run: Run, kind: str, out: Path, *words: str) -> Path:
    """Write an export and return its folder."""
    arguments = [*kind.split(), *words]
    if kind == "afm":
        source = out.with_suffix(".csv")
        source.write_text("question,answer,data_source\n" + "Who?,x,nq\n" * NUM_ROWS)
        arguments += [str(source)]
    else:
        arguments += ["--run", run.run_id, "--root", run.storage.location()]
    done = CliRunner().invoke(export, [*arguments, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


@pytest.mark.parametrize("kind", FOLDERS)
def test_parquet_opens_in_every_library(run: Run, tmp_path: Path, kind: str) -> None:
    out = exported(run, kind.removesuffix(" hf"), tmp_path / kind.replace(" ", "-"), *FOLDERS[kind])
    assert_all_count(out, NUM_ROWS, tmp_path / "cache")


@pytest.mark.parametrize("kind", JSON_FILES)
def test_rows_of_json_open_in_every_library(run: Run, tmp_path: Path, kind: str) -> None:
    command, _, name = kind.partition(" ")
    words: dict[str, Any] = {"sft_rows": ("sft_rows", "--format", name)}
    chosen = words.get(command, (kind,))
    out = exported(run, chosen[0], tmp_path / kind.replace(" ", "-"), *chosen[1:])
    assert_json_read(out / JSON_FILES[kind], NUM_ROWS, tmp_path / "cache", is_data_set=command == "sft_rows")


def test_no_kind_of_export_is_left_out() -> None:
    def kinds(group: click.Group, before: str = "") -> set[str]:
        found = set()
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            deeper = kinds(command, f"{before}{name} ") if isinstance(command, click.Group) else {before + name}
            found |= deeper
        return found

    covered = {kind.partition(" ")[0] if kind.startswith("sft_rows") else kind for kind in [*FOLDERS, *JSON_FILES]}
    assert kinds(export) == covered | OTHERS
