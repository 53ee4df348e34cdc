"""Define `treadle import FORMAT`, which converts files of other programs to inputs or results of a run."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.commands.run import set_option
from treadle.cli.options import RootType, combine_options, json_option, root_option, say
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.tasks.exchange.original_import import ImportResult
    from treadle.tasks.exchange.original_records import ImportKind

_DOMAINS = ("math", "qa", "choice")


@click.group(
    "import",
    short_help="Import files of other programs.",
    epilog="Example:  treadle import verl train.parquet --domain lab/math=math --out questions",
)
def import_() -> None:
    """Convert files of other programs to inputs or results of a run."""


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
    """Convert rows of verl's parquet schema (data_source, prompt, reward_model, extra_info) to questions.

    Writes a file of questions per domain, and questions.toml, which reads them: pass it after the configuration of a
    run. System messages of the rows are dropped: a run uses those of its own environment. The folder is written
    completely or not at all.
    """
    from treadle.rl.verl.exchange import SOURCES_FILE, import_verl

    counts = import_verl(source, out, domains, replace=force)
    if as_json:
        click.echo(sanitized_json({"folder": str(out), "num_questions": counts}))
        return
    told = ", ".join(f"{count:,} {domain}" for domain, count in counts.items())
    click.echo(f"questions: {told}; read them with {sanitize(str(out / SOURCES_FILE))}")


_import_options = combine_options(
    click.argument("source", metavar="FILE", type=click.Path(path_type=Path)),
    click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]..."),
    click.option("--run", "run_id", required=True, help="Name of the run; it is created if it does not exist."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="Folder for the questions of the file, from which the run takes them; it must not exist yet. "
        "Without it, the run's questions are those of its configuration.",
    ),
    click.option(
        "--domain",
        "domains",
        multiple=True,
        metavar="NAME=DOMAIN",
        callback=_parse_domains,
        help="With --out: domain (math, qa or choice) of a source that Treadle does not know; can be repeated.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="Replace an existing result or unfinished work, and the folder.",
    ),
    set_option,
    root_option,
    json_option,
)
"""Options of commands that import a file into a run."""


@import_.command(
    "flywheel",
    short_help="Pools of trajectories that another flywheel has made.",
    epilog="Example:  treadle import flywheel pools.json run.toml --run imported --out questions",
)
@_import_options
@click.option("--instance", default="1/pools", show_default=True, help="Instance whose result the pools become.")
def flywheel(instance: str, **given: Any) -> None:
    """Import the pools of another data flywheel into a run; `sft_rows` continues from them.

    FILE (JSON, JSON Lines or parquet) has a row per question: either the format of the program published with arXiv
    2601.06860, or rows with a `pool` of objects. Verdicts are taken from the file. Rows that cannot be used are left
    out and reported by line and reason.
    """
    _import("pools", instance, **given)


@import_.command(
    "rollouts",
    short_help="Direct rollouts that another program has made.",
    epilog="Example:  treadle import rollouts rollouts.json run.toml --run imported --instance 1/rollouts@base "
    "--out questions",
)
@_import_options
@click.option(
    "--instance",
    required=True,
    help="Instance whose result they become, such as 1/rollouts@base or 1/rollouts@phase-1.",
)
def rollouts(instance: str, **given: Any) -> None:
    """Import direct rollouts of another program into a run; `scores` and `selection` continue from them.

    FILE (JSON, JSON Lines or parquet) has a row per question with `rollout_outputs` and `tool_counts`. Its predictions
    and verdicts are ignored: `scores` extracts and judges the answers as usual. Rows that cannot be used are left out
    and reported by line and reason.
    """
    _import("rollouts", instance, **given)


def _import(
    kind: ImportKind,
    instance: str,
    source: Path,
    configs: tuple[Path, ...],
    run_id: str,
    out: Path | None,
    domains: dict[str, str],
    force: bool,
    overrides: tuple[str, ...],
    root: str | Path,
    as_json: bool,
) -> None:
    from treadle.cli.views.tables import run_options
    from treadle.core.errors import ConfigError
    from treadle.core.runs.address import Address
    from treadle.tasks.catalog import instance as instance_at
    from treadle.tasks.exchange.original_import import SOURCES_FILE, import_records, write_questions
    from treadle.tasks.planning.run_setup import configuration_of, open_run, with_run_defaults
    from treadle.tasks.run_instances import run_instance

    address = Address.parse(instance)
    if domains and out is None:
        raise ConfigError("--domain is for questions that are written with --out; set questions.domains instead")
    if out is not None and not configs:
        raise ConfigError("--out adds questions to a configuration: pass its file after the imported file")
    config = configuration_of(root, run_id, configs, overrides)
    if out is not None:
        num_questions = write_questions(source, kind, config, domains, out, replace_it=force)
        say(f"{num_questions:,} questions: {out}")
        configs = (*configs, out / SOURCES_FILE)
        config = configuration_of(root, run_id, configs, overrides)
    config = with_run_defaults(config, root, run_id)
    run = open_run(root, run_id, config, configs, needs_keys=False)
    run_instance(instance_at(config, Address(address.iteration, "questions")), run)
    record, found = import_records(source, kind, config, run, address, force=force)
    if as_json:
        facts = {"run": run_id, "instance": record.address, "reused": record.reused, **found.as_dict()}
        click.echo(sanitized_json(facts | {"outputs": {name: ref.digest for name, ref in record.outputs.items()}}))
        return
    if record.reused:
        click.echo(f"{record.address} already has the content of this file")
    else:
        _tell(found, record.address)
    say(f"continue with: treadle run {run_options(run_id, root)}")


def _tell(found: ImportResult, address: str) -> None:
    """Print how many rows were imported and why others were not, each reason with its first row."""
    click.echo(f"{found.num_trajectories:,} trajectories of {found.num_rows:,} rows")
    if num_missing := found.num_selected - found.num_rows:
        say(f"{num_missing:,} of the {found.num_selected:,} questions that {address} asks have no row in the file")
    if found.num_other_prompts:
        say(f"{found.num_other_prompts:,} of these rows were made with another system message than this run's")
    for reason, number in found.reasons.most_common():
        first = next((one for one in found.rejected_rows if one.reason == reason), None)
        where = f"; the first is row {first.number}: {one_line(first.detail)}" if first is not None else ""
        say(f"{number:,} left out: {reason.replace('_', ' ')}{where}")


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
