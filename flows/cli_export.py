"""`treadle export KIND`: what a run made, written for other programs. A kind is one command of this group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.core.harmless import harmless, harmless_json
from treadle.flows.options import json_option, root_option, say

if TYPE_CHECKING:
    from treadle.core.records import StageRecord
    from treadle.core.runs import Run
    from treadle.core.stage import Address

ROW_FORMATS = ("sharegpt", "alpaca", "openai", "hf")
"""Names of `sft.exporters.FORMATS`, known without importing what writes them; a test compares them."""

REPORT_FORMATS = ("json", "csv", "comparisons", "md", "legacy")
"""Formats of `tasks.report_export`."""


@click.group(
    short_help="Write what a run made for other programs.",
    epilog="Example:  treadle export sft_rows --run first --format sharegpt --out rows",
)
def export() -> None:
    """Write what a run made for other programs."""


@export.command(
    "sft_rows",
    short_help="Fine-tuning rows for other trainers.",
    epilog="Example:  treadle export sft_rows --run first --format sharegpt --out rows",
)
@click.option("--run", "run_id", required=True, help="Name of the run.")
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice(ROW_FORMATS),
    help="LLaMA-Factory's sharegpt or alpaca, OpenAI's messages, or a Hugging Face data set (the only one with masks).",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet.")
@click.option("--instance", help="Which rows, as in 1/sft_rows; without it, those of the last iteration.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
@root_option
@json_option
def sft_rows(
    run_id: str,
    format_name: str,
    out: Path,
    instance: str | None,
    force: bool,
    root: str | Path,
    as_json: bool,
) -> None:
    """Write the rows of the stage `sft_rows` for other trainers.

    Formats of text (sharegpt, alpaca, openai) carry no masks and no token ids: a trainer that reads them learns to
    write results of tools too. Beside the rows stand rows.jsonl, which says in the same order where each comes from,
    and export.json. The folder appears whole or not at all.
    """
    from treadle.core.runs import Run
    from treadle.sft.exporters import export_rows

    run = Run.open(root, run_id)
    record = _record_with(run, "sft_rows", instance)
    rows = run.rows(record.outputs["sft_rows"])
    done = export_rows(rows, format_name, out, origin={"run": run_id, "instance": record.address}, replace=force)
    for loss in done.format.loses:
        say(f"{format_name} has {loss}")
    if done.num_text_mode:
        say(f"{done.num_text_mode:,} of {done.num_rows:,} rows have no token ids, as they were made in text mode")
    if as_json:
        click.echo(
            harmless_json(
                {
                    "folder": str(done.folder),
                    "format": format_name,
                    "instance": record.address,
                    "digest": rows.digest,
                    "num_rows": done.num_rows,
                    "num_text_mode": done.num_text_mode,
                    "loses": done.format.loses,
                }
            )
        )
    else:
        click.echo(f"{done.num_rows:,} rows of {record.address} as {format_name}: {harmless(str(done.folder))}")


@export.command(
    "rl_rows",
    short_help="Rows for reinforcement learning, for trainers that read verl's parquet.",
    epilog="Example:  treadle export rl_rows --run first --instance 1/selection@phase-2 --out rows",
)
@click.option("--run", "run_id", required=True, help="Name of the run.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet.")
@click.option("--instance", help="Which rows, as in 1/selection@phase-2; without it, those of the last phase.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
@root_option
@json_option
def rl_rows(run_id: str, out: Path, instance: str | None, force: bool, root: str | Path, as_json: bool) -> None:
    """Write the rows of a stage `selection` as train.parquet in verl's schema.

    Beside it stands export.json. The folder appears whole or not at all.
    """
    from treadle.core.runs import Run
    from treadle.rl.verl_exchange import export_verl

    run = Run.open(root, run_id)
    record = _record_with(run, "rl_rows", instance)
    rows = run.rows(record.outputs["rl_rows"])
    num_rows = export_verl(rows, out, origin={"run": run_id, "instance": record.address}, replace=force)
    if as_json:
        facts = {"folder": str(out), "instance": record.address, "digest": rows.digest, "num_rows": num_rows}
        click.echo(harmless_json(facts))
    else:
        click.echo(f"{num_rows:,} rows of {record.address} in verl's schema: {harmless(str(out))}")


@export.command(
    "report",
    short_help="Figures of evaluation and comparisons, as JSON, CSV or markdown.",
    epilog="Example:  treadle export report --run first --format csv --out summary.csv",
)
@click.option("--run", "run_id", required=True, help="Name of the run.")
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice(REPORT_FORMATS),
    help="json: both tables; csv: the figures; comparisons: these as CSV; md: the page; legacy: the figures as the "
    "program published with arXiv 2601.06860 makes them, as JSON, to be held beside published ones.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="File to write.")
@click.option("--instance", help="Which report, as in 1/report; without it, that of the last iteration.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@root_option
@json_option
def report(
    run_id: str, format_name: str, out: Path, instance: str | None, force: bool, root: str | Path, as_json: bool
) -> None:
    """Write a report of a run for other programs and for people."""
    from treadle.core.export_file import write_file
    from treadle.core.runs import Run
    from treadle.tasks.report_export import report_content

    run = Run.open(root, run_id)
    record = _record_with(run, "summary", instance)
    content = report_content(run, record, format_name)
    write_file(out, content, replace=force)
    if as_json:
        facts = {"file": str(out), "format": format_name, "instance": record.address, "bytes": len(content)}
        click.echo(harmless_json(facts))
    else:
        click.echo(f"{record.address} as {format_name}: {harmless(str(out))}")


@export.command(
    "web_record",
    short_help="What a run met of the web, to be met again.",
    epilog="Example:  treadle export web_record --run first",
)
@click.option("--run", "run_id", required=True, help="Name of the run.")
@root_option
@json_option
def web_record(run_id: str, root: str | Path, as_json: bool) -> None:
    """Make an artifact of what a run has recorded of the web so far, and print its folder.

    Other runs take searches and pages from it where they name it as environment.search.web.recorded_in. The same
    entries make the same artifact. It holds text of web pages: see to their licences before you pass it on.
    """
    from treadle.agent.web.record_facts import RecordFacts
    from treadle.agent.web.record_table import write_record
    from treadle.agent.web.stored_entries import WEB_STORE, entries_of
    from treadle.core.errors import RunError
    from treadle.core.runs import Run
    from treadle.flows.cli_web import say_written

    run = Run.open(root, run_id)
    store, facts = run.store(WEB_STORE), RecordFacts()
    if next(store.keys(), None) is None:
        raise RunError(
            f"run {run_id} has recorded nothing of the web; runs do where environment.search.web is set, with a mode "
            "other than replay"
        )
    entries = ((facts.counted(entry), None) for entry in entries_of(store))
    ref = write_record(run.storage, entries, made_by=f"export of run {run_id}")
    say_written(run.storage.location(ref.folder), ref.digest, facts, as_json)


def _record_with(run: Run, kind: str, address: str | None) -> StageRecord:
    """The record of an instance that made tables of a kind: the one named, or that of the last iteration and phase."""
    from treadle.core.errors import RunError
    from treadle.core.stage import Address

    records = [record for record in run.records() if kind in record.outputs]
    if address is not None:
        wanted = Address.parse(address)
        records = [record for record in records if Address.parse(record.address) == wanted]
    if not records:
        missing = address or kind
        raise RunError(f"run {run.run_id} has no finished {missing}; `treadle status --run {run.run_id}` shows it all")
    return max(records, key=lambda record: _age(Address.parse(record.address)))


def _age(address: Address) -> tuple[int, int]:
    """Iteration and phase, by which the last of several results is known."""
    phase = (address.qualifier or "").rpartition("-")[2]
    return address.iteration, int(phase) if phase.isdecimal() else 0
