"""Define `treadle export KIND`, which writes results of a run for other programs; each kind is a subcommand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from treadle.cli.options import Decorator, json_option, options_object, root_option, run_option, say
from treadle.core.untrusted.sanitize import sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.core.runs.records import StageRecord
    from treadle.core.runs.run import Run

ROW_FORMATS = ("sharegpt", "alpaca", "openai", "hf")
"""Names of `sft.exporters.FORMATS`, listed here to avoid the import; a test compares them."""

REPORT_FORMATS = ("json", "csv", "comparisons", "md", "legacy")
"""Formats of `tasks.exchange.report_export`."""


@click.group(
    short_help="Write what a run made for other programs.",
    epilog="Example:  treadle export sft_rows --run first --format sharegpt --out rows",
)
def export() -> None:
    """Write results of a run for other programs."""


@dataclass(frozen=True, slots=True)
class _ExportOptions:
    """Options of an export: which result of a run to write, and where."""

    run_id: str
    instance: str | None
    out: Path
    force: bool
    root: str | Path
    as_json: bool

    def found(self, kind: str) -> tuple[Run, StageRecord]:
        """Return the run, and the record that has a table of this kind."""
        from treadle.core.runs.run import Run

        run = Run.open(self.root, self.run_id)
        return run, _record_with(run, kind, self.instance)

    def tell(self, facts: Mapping[str, Any], line: str) -> None:
        """Print what was written: as JSON for scripts, or as a line."""
        click.echo(sanitized_json(facts) if self.as_json else sanitize(line))


def _export_options(
    instance: str,
    out: str = "Folder to write; it must not exist yet.",
    force: str = "Replace an earlier export in that folder.",
) -> Decorator:
    """Return the options of commands that write one result of a run, passed to them as `_ExportOptions`.

    The arguments are the help texts of three options.
    """
    return options_object(
        _ExportOptions,
        run_option,
        click.option("--out", required=True, type=click.Path(path_type=Path), help=out),
        click.option("--instance", help=instance),
        click.option("--force", is_flag=True, help=force),
        root_option,
        json_option,
    )


@export.command(
    "sft_rows",
    short_help="Fine-tuning rows for other trainers.",
    epilog="Example:  treadle export sft_rows --run first --format sharegpt --out rows",
)
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice(ROW_FORMATS),
    help="LLaMA-Factory's sharegpt or alpaca, OpenAI's messages, or a Hugging Face data set (the only one with masks).",
)
@_export_options("Instance that made the rows, such as 1/sft_rows; default: that of the last iteration.")
def sft_rows(wanted: _ExportOptions, format_name: str) -> None:
    """Write the rows of the stage `sft_rows` for other trainers.

    Text formats (sharegpt, alpaca, openai) have no masks and no token ids: a trainer that reads them also learns to
    write tool results. The folder also contains rows.jsonl, which lists the origin of each row in the same order, and
    export.json. The folder is written completely or not at all.
    """
    from treadle.sft.exporters import export_rows

    run, record = wanted.found("sft_rows")
    rows = run.rows(record.outputs["sft_rows"])
    origin = {"run": run.run_id, "instance": record.address}
    done = export_rows(rows, format_name, wanted.out, origin=origin, replace=wanted.force)
    for loss in done.format.limitations:
        say(f"{format_name} has {loss}")
    if done.num_text_mode:
        say(f"{done.num_text_mode:,} of {done.num_rows:,} rows have no token ids, as they were made in text mode")
    facts = {
        "folder": str(done.folder),
        "format": format_name,
        "instance": record.address,
        "digest": rows.digest,
        "num_rows": done.num_rows,
        "num_text_mode": done.num_text_mode,
        "limitations": done.format.limitations,
    }
    wanted.tell(facts, f"{done.num_rows:,} rows of {record.address} as {format_name}: {done.folder}")


@export.command(
    "rl_rows",
    short_help="Rows for reinforcement learning, for trainers that read verl's parquet.",
    epilog="Example:  treadle export rl_rows --run first --instance 1/selection@phase-2 --out rows",
)
@_export_options("Instance that made the rows, such as 1/selection@phase-2; default: that of the last phase.")
def rl_rows(wanted: _ExportOptions) -> None:
    """Write the rows of a stage `selection` as train.parquet in verl's schema.

    The folder also contains export.json. It is written completely or not at all.
    """
    from treadle.rl.verl.exchange import export_verl

    run, record = wanted.found("rl_rows")
    rows = run.rows(record.outputs["rl_rows"])
    origin = {"run": run.run_id, "instance": record.address}
    num_rows = export_verl(rows, wanted.out, origin=origin, replace=wanted.force)
    facts = {"folder": str(wanted.out), "instance": record.address, "digest": rows.digest, "num_rows": num_rows}
    wanted.tell(facts, f"{num_rows:,} rows of {record.address} in verl's schema: {wanted.out}")


@export.command(
    "model",
    short_help="A trained model, ready for transformers, vLLM or a hub, with its card.",
    epilog="Example:  treadle export model --run first --instance 1/rl@phase-2 --out model",
)
@_export_options("Instance that made the model, such as 1/sft or 1/rl@phase-2; default: the last one.")
def model(wanted: _ExportOptions) -> None:
    """Write a checkpoint as a folder in Hugging Face format: weights, tokenizer, and a model card.

    The card names the base model, its licence if known, the digests of all data, the training settings, and the scores
    of this checkpoint if the run has any; export.json has the same for programs. Only the last part of local paths is
    included. The folder is written completely or not at all.
    """
    from treadle.tasks.exchange.model_export import export_model

    facts = export_model(*wanted.found("checkpoint"), wanted.out, replace=wanted.force)
    for note in facts["notes"]:
        say(f"note: {note}")
    base, licence = facts["base_model"], facts["license"] or "unknown, check it before you share the model"
    line = f"the model of {facts['instance']}: {wanted.out}; it derives from {base}, licence: {licence}"
    wanted.tell(facts, line)


@export.command(
    "dataset",
    short_help="Any table of a run as a data set, with its card.",
    epilog="Example:  treadle export dataset rollouts --run first --instance 1/rollouts@base --out rollouts",
)
@click.argument("kind")
@_export_options(
    "Instance that made the table, such as 1/scores@base; default: the only one of the last iteration and phase."
)
def dataset(wanted: _ExportOptions, kind: str) -> None:
    """Write the table KIND (questions, pools, sft_rows, rollouts, scores, rl_rows, ...) as a data set.

    The files are parquet, for `datasets`, pandas, polars and DuckDB. The card describes the columns, the inputs by
    digest, and the settings; export.json has the same for programs. The folder is written completely or not at all.
    """
    from treadle.tasks.exchange.dataset_export import export_dataset

    facts = export_dataset(*wanted.found(kind), kind, wanted.out, replace=wanted.force)
    wanted.tell(facts, f"{facts['num_rows']:,} rows {kind} of {facts['instance']}: {wanted.out}")


@export.command(
    "flywheel",
    short_help="Pools as the program published with arXiv 2601.06860 writes them.",
    epilog="Example:  treadle export flywheel --run first --out pools",
)
@_export_options("Instance that made the pools, such as 1/pools; default: that of the last iteration.")
def flywheel(wanted: _ExportOptions) -> None:
    """Write pools as pools.json, one object per question, which `treadle import flywheel` reads too.

    This format has no operators, parents, token ids or call outcomes. The folder is written completely or not at all.
    """
    _export_records("pools", wanted)


@export.command(
    "rollouts",
    short_help="Rollouts as the program published with arXiv 2601.06860 writes them.",
    epilog="Example:  treadle export rollouts --run first --instance 1/rollouts@base --out rollouts",
)
@_export_options(
    "Instance of the rollouts, such as 1/rollouts@base; default: the only one of the last iteration and phase."
)
def rollouts(wanted: _ExportOptions) -> None:
    """Write rollouts as rollouts.json, one object per question, which `treadle import rollouts` reads too.

    If the run has scored them, predictions and correctness are included. The folder is written completely or not at
    all.
    """
    _export_records("rollouts", wanted)


@export.command(
    "report",
    short_help="Figures of evaluation and comparisons, as JSON, CSV or markdown.",
    epilog="Example:  treadle export report --run first --out summary.csv",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(REPORT_FORMATS),
    help="json: both tables; csv: the figures; comparisons: the comparisons as CSV; md: the text report; legacy: the "
    "figures as the program published with arXiv 2601.06860 computes them, as JSON. Default: json, csv or md, by the "
    "extension of --out.",
)
@_export_options(
    "Instance of the report, such as 1/report; default: that of the last iteration.",
    out="File to write.",
    force="Replace an existing file.",
)
def report(wanted: _ExportOptions, format_name: str | None) -> None:
    """Write a report of a run as JSON, CSV or markdown."""
    from treadle.core.store.export_file import write_file
    from treadle.tasks.exchange.report_export import format_by_name, report_content

    format_name = format_name or format_by_name(wanted.out)
    run, record = wanted.found("summary")
    content = report_content(run, record, format_name)
    write_file(wanted.out, content, replace=wanted.force)
    facts = {"file": str(wanted.out), "format": format_name, "instance": record.address, "bytes": len(content)}
    wanted.tell(facts, f"{record.address} as {format_name}: {wanted.out}")


@export.command(
    "web_record",
    short_help="Recorded web searches and pages of a run, for replay.",
    epilog="Example:  treadle export web_record --run first",
)
@run_option
@root_option
@json_option
def web_record(run_id: str, root: str | Path, as_json: bool) -> None:
    """Write the web searches and pages that a run has recorded so far as an artifact, and print its folder.

    Other runs replay searches and pages from it if they name it as environment.search.web.recorded_in. Equal entries
    give the same artifact. It contains text of web pages: check their licences before you share it.
    """
    from treadle.cli.commands.web import print_record
    from treadle.core.errors import RunError
    from treadle.core.runs.run import Run
    from treadle.web.record.facts import RecordFacts
    from treadle.web.record.stored_entries import WEB_STORE, entries_of
    from treadle.web.record.table import write_record

    run = Run.open(root, run_id)
    store, facts = run.store(WEB_STORE), RecordFacts()
    if next(store.keys(), None) is None:
        raise RunError(
            f"run {run_id} has no web record; runs record if environment.search.web is set with a mode "
            "other than replay"
        )
    entries = ((facts.counted(entry), None) for entry in entries_of(store))
    ref = write_record(run.storage, entries, made_by=f"export of run {run_id}")
    print_record(run.storage.location(ref.folder), ref.digest, facts, as_json)


def _export_records(kind: Literal["pools", "rollouts"], wanted: _ExportOptions) -> None:
    from treadle.tasks.exchange.original_export import export_records

    facts = export_records(*wanted.found(kind), kind, wanted.out, replace=wanted.force)
    counts = f"{facts['num_trajectories']:,} trajectories of {facts['num_records']:,} questions"
    wanted.tell(facts, f"{counts} of {facts['instance']}: {wanted.out}")


def _record_with(run: Run, kind: str, address: str | None) -> StageRecord:
    """Return the record of the named instance, or of the last iteration and phase that made tables of this kind.

    Results of a model are neither older nor newer than those of a phase: if there are several candidates, one of them
    has to be named (RunError).
    """
    from treadle.core.errors import RunError
    from treadle.core.runs.address import Address
    from treadle.rl.curriculum import phase_of

    found = {Address.parse(record.address): record for record in run.records() if kind in record.outputs}
    if address is not None:
        wanted = Address.parse(address)
        found = {at: record for at, record in found.items() if at == wanted}
    if not found:
        missing = address or kind
        raise RunError(f"run {run.run_id} has no finished {missing}; `treadle status --run {run.run_id}` shows it all")
    newest = max(at.iteration for at in found)
    phases = {at: phase_of(at.qualifier) if at.qualifier else 0 for at in found if at.iteration == newest}
    last_phase = max((phase for phase in phases.values() if phase is not None), default=None)
    last = [found[at] for at, phase in phases.items() if phase is None or phase == last_phase]
    if len(last) > 1:
        several = ", ".join(record.address for record in last)
        raise RunError(f"run {run.run_id} has several finished {kind}: {several}; name one of them with --instance")
    return last[0]
