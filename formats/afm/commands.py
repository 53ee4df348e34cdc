"""Define `treadle export afm` and `treadle import afm`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.options import json_option
from treadle.core.untrusted.sanitize import sanitize, sanitized_json

_TOOLS = ("single", "two", "three", "all")
_PROMPTS = ("mhqa", "gap", "web", "code", "all", "search_r1", "none")


@click.command(
    "afm",
    short_help="Rows for verl with tools, as AFM and GAP train on.",
    epilog="Example:  treadle export afm nq.jsonl --tools single --prompt gap --out rows",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet."
)
@click.option(
    "--tools",
    type=click.Choice(_TOOLS),
    default="single",
    show_default=True,
    help="Tools of a row. single: wiki_search; two: web_search, crawl_page; three: these three; all: web_search, "
    "crawl_page, code, visual_inspector.",
)
@click.option("--prompt", type=click.Choice(_PROMPTS), default="mhqa", show_default=True, help="Instructions.")
@click.option("--filter-none", is_flag=True, help="Leave out rows that cannot be used, instead of failing.")
@click.option("--limit", type=click.IntRange(min=1), help="Number of rows to take from the start.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
@json_option
def export_command(source: Path, out: Path, prompt: str, force: bool, as_json: bool, **given: Any) -> None:
    """Write questions as training rows (arXiv 2508.13167, 2510.25320): parquet with prompt, ground truth and tools.

    FILE (JSON, JSON Lines, CSV or parquet) has rows of question, answer (text or a list), data_source and, for a
    picture, file_name. Rows that are in the schema already get the new prompt and tools, and an index if they have
    none.
    """
    from treadle.formats.afm.prepare import prepare_rows

    told = prepare_rows(source, out, prompt="" if prompt == "none" else prompt, replace=force, **given)
    if as_json:
        counts = {"num_rows": told.num_rows, "num_left_out": len(told.refused), "left_out": told.refused[:3]}
        click.echo(sanitized_json({"file": str(out / told.file), **counts}))
        return
    for line in told.lines():
        click.echo(sanitize(line))


@click.group(
    "afm",
    short_help="Hidden tests of LiveCodeBench.",
    epilog="Example:  treadle import afm tests test5.jsonl --out tests",
)
def import_command() -> None:
    """Import files that training and evaluation of Agent Foundation Models (arXiv 2508.13167) need."""


@import_command.command(
    "tests",
    short_help="Tests of LiveCodeBench, one file per problem.",
    epilog="Example:  treadle import afm tests test5.jsonl --out tests",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet."
)
@click.option("--force", is_flag=True, help="Replace an earlier import in that folder.")
@json_option
def import_tests(source: Path, out: Path, force: bool, as_json: bool) -> None:
    """Write the public and private tests of each problem of a LiveCodeBench file as OUT/QUESTION_ID.json.

    `treadle import verl --tests OUT` gives them to rows that name their tests by question_id.
    """
    from treadle.formats.afm.lcb_tests import write_tests

    count = write_tests(source, out, replace=force)
    told = {"folder": str(out), "num_problems": count}
    click.echo(sanitized_json(told) if as_json else sanitize(f"{out}: tests of {count:,} problems"))
