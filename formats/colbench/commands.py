"""Define `treadle import colbench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.options import json_option, root_option, say, set_option
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json


@click.group(
    "colbench",
    short_help="Programming tasks and dialogues of ColBench.",
    epilog="Example:  treadle import colbench tasks test.jsonl --out tasks --split heldout --limit 1000",
)
def import_command() -> None:
    """Import files of ColBench (arXiv 2503.15478), which Treadle does not ship."""


@import_command.command(
    "tasks",
    short_help="Tasks, as questions with hidden references and tests.",
    epilog="Example:  treadle import colbench tasks test.jsonl --out tasks --split heldout --limit 1000",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not exist yet."
)
@click.option("--split", type=click.Choice(["train", "heldout"]), help="Split of all tasks; default: that of the run.")
@click.option("--limit", type=click.IntRange(min=1), help="Number of tasks to take from the start.")
@click.option("--frontend", is_flag=True, help="Tasks about web pages, for colbench/frontend.")
@click.option("--force", is_flag=True, help="Replace an earlier import in that folder.")
@json_option
def import_tasks_command(source: Path, out: Path, frontend: bool, force: bool, as_json: bool, **given: Any) -> None:
    """Write tasks as OUT/tasks.jsonl, and OUT/questions.toml, which a run of colbench/backend takes as configuration.

    FILE (JSON, JSON Lines or parquet) has rows with problem_description, ground_truth and test_cases; other fields are
    kept, hidden. Tasks about web pages have a page as ground_truth and no test_cases. Published figures are over the
    first 1,000 rows of the test file, and over 500 for pages.
    """
    from treadle.formats.colbench.tasks import BACKEND, FRONTEND, SOURCES_FILE, import_tasks

    count = import_tasks(source, out, half=FRONTEND if frontend else BACKEND, replace=force, **given)
    told = {"folder": str(out), "configuration": str(out / SOURCES_FILE), "num_tasks": count}
    click.echo(sanitized_json(told) if as_json else sanitize(f"{out / SOURCES_FILE}: {count:,} tasks"))


@import_command.command(
    "trajectories",
    short_help="Dialogues, as the rollouts of a run.",
    epilog="Example:  treadle import colbench trajectories offline.jsonl run.toml --run offline "
    "--instance 1/rollouts@base --out tasks",
)
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]...")
@click.option("--run", "run_id", required=True, help="Name of the run; it is created if it does not exist.")
@click.option("--instance", required=True, help="Instance whose result they become, such as 1/rollouts@base.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the tasks of the dialogues, from which the run takes them; it must not exist yet. Without it, the "
    "run's tasks are those of its configuration.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Refuse the file unless it repeats one list of tasks this number of times, as the published program does.",
)
@click.option("--force", is_flag=True, help="Replace an existing result or unfinished work, and the folder.")
@set_option
@root_option
@json_option
def import_trajectories_command(
    source: Path,
    configs: tuple[Path, ...],
    run_id: str,
    instance: str,
    out: Path | None,
    samples: int | None,
    force: bool,
    overrides: tuple[str, ...],
    root: str | Path,
    as_json: bool,
) -> None:
    """Import dialogues that another program collected into a run; `scores` and training continue from them.

    FILE (JSON, JSON Lines or parquet) has rows with task, dialogue_history and answer. Rewards in it are ignored:
    `scores` runs the tests. The whole dialogue is encoded by the policy's tokenizer, and only the agent's text counts
    as the model's. Rows that cannot be used are left out and reported.
    """
    from treadle.cli.views.tables import run_options
    from treadle.core.errors import ConfigError
    from treadle.core.runs.address import Address
    from treadle.formats.colbench.importing import import_dialogues
    from treadle.formats.colbench.tasks import SOURCES_FILE, write_tasks
    from treadle.formats.colbench.trajectories import check_alignment, tasks_in
    from treadle.tasks.catalog import instance as instance_at
    from treadle.tasks.planning.run_setup import configuration_of, open_run, with_run_defaults
    from treadle.tasks.run_instances import run_instance

    address = Address.parse(instance)
    if samples is not None:
        check_alignment(source, samples)
    if out is not None:
        if not configs:
            raise ConfigError("--out adds tasks to a configuration: pass its file after the imported file")
        count = write_tasks(tasks_in(source), source, out, replace=force)
        say(f"{count:,} tasks: {out}")
        configs = (*configs, out / SOURCES_FILE)
    config = with_run_defaults(configuration_of(root, run_id, configs, overrides), root, run_id)
    run = open_run(root, run_id, config, configs, needs_keys=False)
    run_instance(instance_at(config, Address(address.iteration, "questions")), run)
    record, found = import_dialogues(source, config, run, address, force=force)
    if as_json:
        facts = {"run": run_id, "instance": record.address, "reused": record.reused, **found.as_dict()}
        click.echo(sanitized_json(facts | {"outputs": {name: ref.digest for name, ref in record.outputs.items()}}))
        return
    if record.reused:
        click.echo(f"{record.address} already has the content of this file")
    else:
        click.echo(f"{found.num_rows:,} dialogues about {found.num_tasks:,} tasks")
    for reason, number in found.reasons.most_common():
        row, why = found.first_rejected[reason]
        say(f"{number:,} left out: {reason.replace('_', ' ')}; the first is row {row}: {one_line(why)}")
    say(f"continue with: treadle run {run_options(run_id, root)}")
