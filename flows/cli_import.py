"""`treadle import FORMAT`: files of other programs, turned into what a run reads."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import click

from treadle.core.harmless import harmless, harmless_json
from treadle.flows.options import RootType, json_option, root_option, say

_DOMAINS = ("math", "qa", "choice")


@click.group(
    "import",
    short_help="Turn files of other programs into what a run reads.",
    epilog="Example:  treadle import verl train.parquet --domain lab/math=math --out questions",
)
def import_() -> None:
    """Turn files of other programs into what a run reads."""


def _parse_domains(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, separator, domain = value.rpartition("=")
        if not separator or not name or domain not in _DOMAINS:
            raise click.BadParameter(f"{value!r} is not of the form NAME=DOMAIN with {', '.join(_DOMAINS)}")
        found[name] = domain
    return found


@import_.command(
    "verl",
    short_help="Rows in verl's parquet schema.",
    epilog="Example:  treadle import verl train.parquet --domain lab/math=math --out questions",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet.")
@click.option(
    "--domain",
    "domains",
    multiple=True,
    metavar="NAME=DOMAIN",
    callback=_parse_domains,
    help="Domain (math, qa or choice) of a data_source that is not one of Treadle's own; can be repeated.",
)
@click.option("--force", is_flag=True, help="Replace an earlier import in that folder.")
@json_option
def verl(source: Path, out: Path, domains: dict[str, str], force: bool, as_json: bool) -> None:
    """Turn rows of verl's parquet schema (data_source, prompt, reward_model, extra_info) into questions.

    Writes a file of questions per domain, and questions.toml, which reads them: give it after the configuration of a
    run. System messages of the rows are left behind: a run asks with those of its own environment. The folder appears
    whole or not at all.
    """
    from treadle.rl.verl_exchange import SOURCES_FILE, import_verl

    counts = import_verl(source, out, domains, replace=force)
    if as_json:
        click.echo(harmless_json({"folder": str(out), "num_questions": counts}))
        return
    told = ", ".join(f"{count:,} {domain}" for domain, count in counts.items())
    click.echo(f"questions: {told}; read them with {harmless(str(out / SOURCES_FILE))}")


@import_.command(
    "web_cache",
    short_help="Searches that another program has cached.",
    epilog="Example:  treadle import web_cache search_cache.json --recorded-at 2025-11-03",
)
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--recorded-at",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="When results were found that bear no date (UTC); without it, when their file was written.",
)
@click.option(
    "--with", "base", metavar="FOLDER", type=RootType(), help="A record to add to; where it has an entry, that is kept."
)
@root_option
@json_option
def web_cache(
    sources: tuple[Path, ...],
    recorded_at: datetime | None,
    base: str | Path | None,
    root: str | Path,
    as_json: bool,
) -> None:
    """Make a `web_record` artifact of caches of other programs, and print its folder.

    A file is a JSON object of query -> result, or a SQLite file with a table of key, obj, timestamp and valid. A result
    is text, hits, or an answer of Serper, Bright Data or Bing. What cannot be used is counted by reason. Of several
    results for one query the first is kept.
    """
    from treadle.agent.web.foreign import gather
    from treadle.agent.web.record_facts import facts_of
    from treadle.agent.web.record_folder import open_record
    from treadle.agent.web.record_table import write_record
    from treadle.core.storage import open_storage
    from treadle.flows.cli_web import say_written

    date = None if recorded_at is None else recorded_at.replace(tzinfo=UTC)
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(contextlib.closing(open_record(base))).entries() if base is not None else ()
        found = gather(sources, recorded_at=date, base=kept)
    storage = open_storage(root)
    ref = write_record(storage, found.in_order(), made_by="import of a web cache")
    say("read " + ", ".join(f"{number:,} {shape}" for shape, number in found.shapes.most_common()))
    if found.repeated:
        say(f"{found.repeated:,} of them were there already")
    for why, number in found.skipped.most_common():
        say(f"{number:,} left out: {why}")
    if found.first:
        say(f"the first of these: {found.first}")
    facts = facts_of(entry for entry, _ in found.entries.values())
    more = {"shapes": found.shapes, "num_repeated": found.repeated, "skipped": found.skipped}
    say_written(storage.location(ref.folder), ref.digest, facts, as_json, **more)
