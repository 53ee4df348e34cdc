"""Define `treadle import FORMAT`, which converts files of other programs to inputs or results of a run."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import click

from treadle.cli.formats import FormatGroup
from treadle.cli.options import RootType, domain_option, json_option, root_option, say
from treadle.core.untrusted.sanitize import sanitize, sanitized_json


@click.group(
    "import",
    cls=FormatGroup,
    short_help="Import files of other programs.",
    epilog="Example:  treadle import verl train.parquet --domain lab/math=math --out questions",
)
def import_() -> None:
    """Convert files of other programs to inputs or results of a run."""


@import_.command(
    "verl",
    short_help="Rows in verl's parquet schema.",
    epilog="Example:  treadle import verl train.parquet --domain lab/math=math --out questions",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet."
)
@domain_option("Domain (math, qa or choice) of a data_source that is not one of Treadle's own; can be repeated.")
@click.option(
    "--tests",
    metavar="FOLDER",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Hidden tests of programs: a file QUESTION_ID.json for each (`treadle import afm tests`).",
)
@click.option("--force", is_flag=True, help="Replace an earlier import in that folder.")
@json_option
def verl(source: Path, out: Path, domains: dict[str, str], tests: Path | None, force: bool, as_json: bool) -> None:
    """Convert rows of verl's parquet schema (data_source, prompt, reward_model, extra_info) to questions.

    Writes a file of questions per domain, and questions.toml, which reads them: pass it after the configuration of a
    run. System messages of the rows are dropped: a run uses those of its own environment. The folder is written
    completely or not at all.
    """
    from treadle.rl.verl.exchange import SOURCES_FILE, import_verl

    counts = import_verl(source, out, domains, tests=tests, replace=force)
    if as_json:
        click.echo(sanitized_json({"folder": str(out), "num_questions": counts}))
        return
    told = ", ".join(f"{count:,} {domain}" for domain, count in counts.items())
    click.echo(f"questions: {told}; read them with {sanitize(str(out / SOURCES_FILE))}")


@import_.command(
    "web_cache",
    short_help="Searches that another program has cached.",
    epilog="Example:  treadle import web_cache search_cache.json --recorded-at 2025-11-03",
)
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--recorded-at",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Date (UTC) of results without one; default: the modification time of their file.",
)
@click.option("--with", "base", metavar="FOLDER", type=RootType(), help="A record to add to; its own entries are kept.")
@root_option
@json_option
def web_cache(
    sources: tuple[Path, ...],
    recorded_at: datetime | None,
    base: str | Path | None,
    root: str | Path,
    as_json: bool,
) -> None:
    """Convert caches of other programs to a `web_record` artifact, and print its folder.

    A file is a JSON object of query -> result, or a SQLite file with a table of key, obj, timestamp and valid. A result
    is text, hits, or a response of Serper, Bright Data or Bing. Unusable entries are counted by reason. If a query has
    several results, the first is kept.
    """
    from treadle.cli.commands.web import print_record
    from treadle.core.store.roots import open_storage
    from treadle.web.record.facts import facts_of
    from treadle.web.record.folder import open_record
    from treadle.web.record.import_cache import collect_entries
    from treadle.web.record.table import write_record

    date = None if recorded_at is None else recorded_at.replace(tzinfo=UTC)
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(contextlib.closing(open_record(base))).entries() if base is not None else ()
        found = collect_entries(sources, recorded_at=date, base=kept)
    storage = open_storage(root)
    ref = write_record(storage, found.in_order(), made_by="import of a web cache")
    say("read " + ", ".join(f"{number:,} {shape}" for shape, number in found.shapes.most_common()))
    if found.repeated:
        say(f"{found.repeated:,} of them were already known")
    for why, number in found.skipped.most_common():
        say(f"{number:,} left out: {why}")
    if found.first:
        say(f"the first of these: {found.first}")
    facts = facts_of(entry for entry, _ in found.entries.values())
    more = {"shapes": found.shapes, "num_repeated": found.repeated, "skipped": found.skipped}
    print_record(storage.location(ref.folder), ref.digest, facts, as_json, **more)
