"""Define `treadle export KIND`, which writes results of a run for other programs; each kind is a subcommand."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.commands.export_rows import preferences, rl_rows, sft_rows
from treadle.cli.export_options import ExportOptions, export_options
from treadle.cli.formats import FormatGroup
from treadle.cli.options import json_option, root_option, run_option, say

REPORT_FORMATS = ("json", "csv", "comparisons", "md")
_FORMATS = {".json": "json", ".csv": "csv", ".md": "md", ".txt": "md", "": "md"}
"""Extension of a file -> format of a report."""


@click.group(
    cls=FormatGroup,
    short_help="Write what a run made for other programs.",
    epilog="Example:  treadle export sft_rows --run first --format sharegpt --out rows",
)
def export() -> None:
    """Write results of a run for other programs."""


for _rows in (sft_rows, preferences, rl_rows):
    export.add_command(_rows)


@export.command(
    "model",
    short_help="A trained model, ready for transformers, vLLM or a hub, with its card.",
    epilog="Example:  treadle export model --run first --instance 1/rl@phase-2 --out model",
)
@export_options("Instance that made the model, such as 1/sft or 1/rl@phase-2; default: the last one.")
def model(wanted: ExportOptions) -> None:
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
@export_options(
    "Instance that made the table, such as 1/scores@base; default: the only one of the last iteration and phase."
)
def dataset(wanted: ExportOptions, kind: str) -> None:
    """Write the table KIND (questions, pools, sft_rows, rollouts, scores, rl_rows, ...) as a data set.

    The files are parquet, for `datasets`, pandas, polars and DuckDB. The card describes the columns, the inputs by
    digest, and the settings; export.json has the same for programs. The folder is written completely or not at all.
    """
    from treadle.tasks.exchange.dataset_export import export_dataset

    facts = export_dataset(*wanted.found(kind), kind, wanted.out, replace=wanted.force)
    wanted.tell(facts, f"{facts['num_rows']:,} rows {kind} of {facts['instance']}: {wanted.out}")


@export.command(
    "trajectories",
    short_help="One joined table: questions, gold answers, predictions, verdicts, calls, tokens and seconds.",
    epilog="Example:  treadle export trajectories --run first --out trajectories",
)
@click.option("--model", help="Only the rollouts of this model.")
@click.option("--iteration", type=int, help="Only those of this iteration; default: each rollout once.")
@run_option
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
@root_option
@json_option
def trajectories(
    run_id: str, out: Path, force: bool, root: str, as_json: bool, model: str | None, iteration: int | None
) -> None:
    """Write one row per rollout with everything known about it, as parquet for pandas, polars, DuckDB and `datasets`.

    The folder has a card with the columns. It is written completely or not at all.
    """
    from treadle.core.runs.run import Run
    from treadle.tasks.exchange.trajectories_export import export_trajectories

    wanted = ExportOptions(run_id, None, out, force, root, as_json)
    facts = export_trajectories(Run.open(root, run_id), out, model=model, iteration=iteration, replace=force)
    wanted.tell(facts, f"{facts['num_rows']:,} trajectories of {run_id}: {out}; read the folder {out / 'data'}")


@export.command(
    "answers",
    short_help="Answers as JSON Lines, one per question and round: steps, prediction, verdict.",
    epilog="Example:  treadle export answers --run first --out answers",
)
@click.option("--model", help="Only the rollouts of this model.")
@run_option
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace an earlier export in that folder.")
@root_option
@json_option
def answers(run_id: str, out: Path, force: bool, root: str, as_json: bool, model: str | None) -> None:
    """Write answers.jsonl in the form of published evaluations of web agents (arXiv 2508.13167).

    Each scored rollout has a line: question_id, question, Level, golden_answer, prediction (null without an answer),
    llm_judge, steps, status (completed, error or invalid_format), error, raw; and correct, round, model, dataset.
    """
    from treadle.core.runs.run import Run
    from treadle.tasks.exchange.answers_export import export_answers

    wanted = ExportOptions(run_id, None, out, force, root, as_json)
    facts = export_answers(Run.open(root, run_id), out, model=model, replace=force)
    wanted.tell(facts, f"{facts['num_rows']:,} answers of {run_id}: {facts['file']}")


@export.command(
    "report",
    short_help="Figures of evaluation and comparisons, as JSON, CSV or markdown.",
    epilog="Example:  treadle export report --run first --out summary.csv",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(REPORT_FORMATS),
    help="json: all tables; csv: the figures; comparisons: the comparisons as CSV; md: the text report. "
    "Default: json, csv or md, by the extension of --out.",
)
@export_options(
    "Instance of the report, such as 1/report; default: that of the last iteration.",
    out="File to write.",
    force="Replace an existing file.",
)
def report(wanted: ExportOptions, format_name: str | None) -> None:
    """Write a report of a run as JSON, CSV or markdown."""
    from treadle.core.store.exported import write_file
    from treadle.report.files import report_content

    format_name = format_name or format_by_name(wanted.out)
    run, record = wanted.found("summary")
    content = report_content(run, record, format_name)
    write_file(wanted.out, content, replace=wanted.force)
    facts = {"file": str(wanted.out), "format": format_name, "instance": record.address, "bytes": len(content)}
    wanted.tell(facts, f"{record.address} as {format_name}: {wanted.out}")


def format_by_name(file: Path) -> str:
    """Return the format that a file name implies; raise ConfigError if it implies none."""
    from treadle.core.errors import ConfigError

    if (found := _FORMATS.get(file.suffix.lower())) is None:
        raise ConfigError(
            f"{file}: {file.suffix} is the extension of no format; name one with --format, or use .json, .csv "
            "or .md; `treadle report` makes a page for browsers"
        )
    return found


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
    from treadle.core.runs.run import Run
    from treadle.web.record.export import export_record

    run = Run.open(root, run_id)
    ref, facts = export_record(run)
    print_record(run.storage.location(ref.folder), ref.digest, facts, as_json)
