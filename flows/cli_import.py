"""`treadle import FORMAT`: files of other programs, turned into what a run reads."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.core.harmless import harmless, harmless_json
from treadle.flows.options import json_option

_DOMAINS = ("math", "qa", "choice")


@click.group(
    "import",
    short_help="Turn files of other programs into questions.",
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
