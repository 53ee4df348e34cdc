"""Define `treadle import et-agent` and `treadle export et-agent`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.export_options import ExportOptions, export_options
from treadle.cli.options import combine_options, domain_option, json_option, root_option, say, set_option
from treadle.core.untrusted.sanitize import one_line, sanitized_json

if TYPE_CHECKING:
    from treadle.formats.et_agent.import_result import ImportResult
    from treadle.formats.et_agent.records import ImportKind


@click.group(
    "et-agent",
    short_help="Pools and rollouts of the ET-Agent program.",
    epilog="Example:  treadle import et-agent pools pools.json run.toml --run imported --out questions",
)
def import_command() -> None:
    """Import files of the program published with arXiv 2601.06860 (ET-Agent) as results of a run."""


@click.group(
    "et-agent",
    short_help="Pools, rollouts and figures as the ET-Agent program writes them.",
    epilog="Example:  treadle export et-agent pools --run first --out pools",
)
def export_command() -> None:
    """Write results of a run as the program published with arXiv 2601.06860 (ET-Agent) does."""


_import_options = combine_options(
    click.argument("source", metavar="FILE", type=click.Path(path_type=Path)),
    click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]..."),
    click.option("--run", "run_id", required=True, help="Name of the run; it is created if it does not exist."),
    click.option(
        "-o",
        "--out",
        type=click.Path(path_type=Path),
        help="Folder for the questions of the file, from which the run takes them; it must not exist yet. "
        "Without it, the run's questions are those of its configuration.",
    ),
    domain_option("With --out: domain (math, qa or choice) of a source that Treadle does not know; can be repeated."),
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


@import_command.command(
    "pools",
    short_help="Pools of trajectories of a data flywheel.",
    epilog="Example:  treadle import et-agent pools pools.json run.toml --run imported --out questions",
)
@_import_options
@click.option("--instance", default="1/pools", show_default=True, help="Instance whose result the pools become.")
def import_pools(instance: str, **given: Any) -> None:
    """Import the pools of another data flywheel into a run; `sft_rows` continues from them.

    FILE (JSON, JSON Lines or parquet) has a row per question: either the format of the program published with arXiv
    2601.06860, or rows with a `pool` of objects. Verdicts are taken from the file. Rows that cannot be used are left
    out and reported by line and reason.
    """
    _import("pools", instance, **given)


@import_command.command(
    "rollouts",
    short_help="Direct rollouts.",
    epilog="Example:  treadle import et-agent rollouts rollouts.json run.toml --run imported "
    "--instance 1/rollouts@base --out questions",
)
@_import_options
@click.option(
    "--instance",
    required=True,
    help="Instance whose result they become, such as 1/rollouts@base or 1/rollouts@phase-1.",
)
def import_rollouts(instance: str, **given: Any) -> None:
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
    from treadle.formats.et_agent.importing import import_records
    from treadle.formats.et_agent.question_import import SOURCES_FILE, write_questions
    from treadle.tasks.catalog import instance as instance_at
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


@export_command.command(
    "pools",
    short_help="Pools, which `treadle import et-agent pools` reads too.",
    epilog="Example:  treadle export et-agent pools --run first --out pools",
)
@export_options("Instance that made the pools, such as 1/pools; default: that of the last iteration.")
def export_pools(wanted: ExportOptions) -> None:
    """Write pools as pools.json, one object per question.

    This format has no operators, parents, token ids or call outcomes. The folder is written completely or not at all.
    """
    _export("pools", wanted)


@export_command.command(
    "rollouts",
    short_help="Rollouts, which `treadle import et-agent rollouts` reads too.",
    epilog="Example:  treadle export et-agent rollouts --run first --instance 1/rollouts@base --out rollouts",
)
@export_options(
    "Instance of the rollouts, such as 1/rollouts@base; default: the only one of the last iteration and phase."
)
def export_rollouts(wanted: ExportOptions) -> None:
    """Write rollouts as rollouts.json, one object per question.

    If the run has scored them, predictions and correctness are included. The folder is written completely or not at
    all.
    """
    _export("rollouts", wanted)


def _export(kind: ImportKind, wanted: ExportOptions) -> None:
    from treadle.formats.et_agent.exporting import export_records

    facts = export_records(*wanted.found(kind), kind, wanted.out, replace=wanted.force)
    counts = f"{facts['num_trajectories']:,} trajectories of {facts['num_records']:,} questions"
    wanted.tell(facts, f"{counts} of {facts['instance']}: {wanted.out}")


@export_command.command(
    "report",
    short_help="Figures of a report as the ET-Agent program computes them, as JSON.",
    epilog="Example:  treadle export et-agent report --run first --out figures.json",
)
@export_options(
    "Instance of the report, such as 1/report; default: that of the last iteration.",
    out="File to write.",
    force="Replace an existing file.",
)
def export_report(wanted: ExportOptions) -> None:
    """Write the figures of a report as the ET-Agent program computes them from the same rollouts, as JSON."""
    from treadle.formats.et_agent import report

    facts = report.export_report(*wanted.found("summary"), wanted.out, replace=wanted.force)
    wanted.tell(facts, f"{facts['instance']} as et-agent: {wanted.out}")
