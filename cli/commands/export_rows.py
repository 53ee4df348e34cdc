"""Define the kinds of `treadle export` that write rows for other trainers."""

from __future__ import annotations

import click

from treadle.cli.export_options import ExportOptions, export_options
from treadle.cli.options import say

ROW_FORMATS = ("sharegpt", "alpaca", "openai", "hf")
"""Names of `sft.exporters.FORMATS`, listed here to avoid the import; a test compares them."""


@click.command(
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
@click.option(
    "--results",
    type=click.Choice(("inside", "apart")),
    default="inside",
    help="Results of tools that are called by tags: inside the turn, as the model saw them, or apart as messages.",
)
@export_options("Instance that made the rows, such as 1/sft_rows; default: that of the last iteration.")
def sft_rows(wanted: ExportOptions, format_name: str, results: str) -> None:
    """Write the rows of the stage `sft_rows` for other trainers.

    Text formats (sharegpt, alpaca, openai) have no masks and no token ids. A trainer that reads them also learns to
    write tool results that are inside turns; `--results apart` makes messages of them, as chat services get them.
    Native calls and their results always are messages. The folder also contains rows.jsonl, which lists the origin of
    each row in the same order, and export.json. The folder is written completely or not at all.
    """
    from treadle.sft.exporters import export_rows

    run, record = wanted.found("sft_rows")
    rows = run.rows(record.outputs["sft_rows"])
    origin = {"run": run.run_id, "instance": record.address}
    done = export_rows(
        rows, format_name, wanted.out, origin=origin, results_apart=results == "apart", replace=wanted.force
    )
    for loss in done.limitations:
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
        "limitations": done.limitations,
    }
    wanted.tell(facts, f"{done.num_rows:,} rows of {record.address} as {format_name}: {done.folder}")


@click.command(
    "preferences",
    short_help="Pairs of turns and a configuration for LLaMA-Factory.",
    epilog="Example:  treadle export preferences --run first --instance 1/preferences@turn --out pairs",
)
@click.option("--template", help="LLaMA-Factory's name of the model's template, such as llama3; default: the model's.")
@export_options("Instance that made the pairs, such as 1/preferences@turn.")
def preferences(wanted: ExportOptions, template: str | None) -> None:
    """Write pairs of turns as a data set with rankings, and train.yaml with the settings of `dpo@policy`.

    Texts have no masks and are tokenised again by the trainer. The folder also contains dataset_info.json and
    export.json. It is written completely or not at all.
    """
    from treadle.rl.dpo.llamafactory import export_pairs
    from treadle.tasks.exchange.policy_training import policy_options

    run, record = wanted.found("preferences")
    rows = run.rows(record.outputs["preferences"])
    origin = {"run": run.run_id, "instance": record.address}
    options = policy_options(run, record.address)
    num_rows, num_left_out = export_pairs(
        rows, options, wanted.out, origin=origin, template=template, replace=wanted.force
    )
    if num_left_out:
        say(f"{num_left_out:,} pairs are left out: their conversations do not alternate between two sides")
    facts = {"folder": str(wanted.out), "instance": record.address, "digest": rows.digest, "num_rows": num_rows}
    wanted.tell(facts, f"{num_rows:,} pairs of {record.address} for LLaMA-Factory: {wanted.out}")


@click.command(
    "rl_rows",
    short_help="Rows for reinforcement learning, for trainers that read verl's parquet.",
    epilog="Example:  treadle export rl_rows --run first --instance 1/selection@phase-2 --out rows",
)
@export_options("Instance that made the rows, such as 1/selection@phase-2; default: that of the last phase.")
def rl_rows(wanted: ExportOptions) -> None:
    """Write the rows of a stage `selection` as data/train.parquet in verl's schema.

    The folder also contains export.json. It is written completely or not at all.
    """
    from treadle.rl.verl.exchange import export_verl

    run, record = wanted.found("rl_rows")
    rows = run.rows(record.outputs["rl_rows"])
    origin = {"run": run.run_id, "instance": record.address}
    num_rows = export_verl(rows, wanted.out, origin=origin, replace=wanted.force)
    facts = {"folder": str(wanted.out), "instance": record.address, "digest": rows.digest, "num_rows": num_rows}
    wanted.tell(facts, f"{num_rows:,} rows of {record.address} in verl's schema: {wanted.out}")
