"""Define the read-only commands `runs`, `status`, `logs`, `show`, `lineage` and `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import json_option, root_option, run_option, say
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.core.runs.run import Run


@click.command(epilog="Example:  treadle status --run first --json")
@run_option
@root_option
@json_option
def status(run_id: str, root: str | Path, as_json: bool) -> None:
    """Show what of a run is finished, running, failed or crashed."""
    from treadle.cli.views.tables import console, status_table
    from treadle.core.runs.run import Run
    from treadle.tasks.planning.forced_runs import pending_forced
    from treadle.tasks.planning.run_setup import known_addresses

    run = Run.open(root, run_id)
    addresses = known_addresses(run)
    statuses = run.statuses(addresses)
    if as_json:
        click.echo(sanitized_json([item.model_dump(mode="json") for item in statuses]))
        return
    idle = all(item.state != "running" for item in statuses)
    console().print(status_table(run, statuses, forced=idle and bool(pending_forced(run, addresses))))


@click.command(epilog="Example:  treadle runs --json")
@root_option
@json_option
def runs(root: str | Path, as_json: bool) -> None:
    """List all runs with their state, progress and last error."""
    from datetime import UTC, datetime

    from treadle.cli.views.tables import console, runs_table
    from treadle.tasks.inspection.overview import overviews

    found = overviews(root)
    if as_json:
        click.echo(sanitized_json(found))
    elif found:
        console().print(runs_table(found, datetime.now(UTC)))
    else:
        click.echo(f"no runs under {sanitize(str(root))}; start one with: treadle run CONFIG.toml --run NAME")


@click.command(
    short_help="Print the log of an attempt, or follow it.", epilog="Example:  treadle logs 1/rollouts@base -r first -f"
)
@click.argument("address", metavar="[INSTANCE]", required=False)
@run_option
@click.option("--attempt", "number", type=click.IntRange(min=1), metavar="N", help="Attempt. [default: the newest]")
@click.option(
    "-n", "--lines", "num_lines", type=click.IntRange(min=0), default=100, show_default=True, help="Last lines."
)
@click.option("-f", "--follow", is_flag=True, help="Print what is added until the attempt ends.")
@root_option
def logs(address: str | None, run_id: str, number: int | None, num_lines: int, follow: bool, root: str | Path) -> None:
    """Print the log of an attempt at INSTANCE; without it, of the attempt that started last."""
    from treadle.core.runs.address import Address
    from treadle.core.runs.run import Run
    from treadle.tasks.inspection.attempt_logs import attempt_log

    log = attempt_log(Run.open(root, run_id), Address.parse(address) if address else None, number)
    say(f"attempt {log.number} at {log.address}: {log.run.storage.location(log.key)}")
    for line in log.lines(num_lines, follow=follow):
        click.echo(sanitize(line.rstrip("\r")))


@click.command(
    short_help="One trajectory, and what changed against its parent.", epilog="Example:  treadle show 3f2a --run first"
)
@click.argument("key")
@run_option
@root_option
@json_option
def show(key: str, run_id: str, root: str | Path, as_json: bool) -> None:
    """Show one trajectory with its verdict, in colour.

    KEY is the key of a rollout or of a trajectory of `pools`, or an unambiguous prefix. If several iterations have it,
    2/KEY selects the second one, and KEY the last one. For an edited trajectory, the changes from its parent are shown
    too.
    """
    from treadle.cli.views.tables import console
    from treadle.cli.views.trajectory import trajectory_view
    from treadle.core.runs.run import Run
    from treadle.tasks.inspection.lineage import find_rollout
    from treadle.web.record.run_entries import RunEntries

    run = Run.open(root, run_id)
    found = find_rollout(run, key)
    for problem in found.score_errors:
        say(f"warning: shown without its verdict: {problem}")
    if as_json:
        click.echo(sanitized_json(found.as_dict()))
        return
    with RunEntries(run) as entries:
        addresses = entries.addresses(key for call in found.tool_calls for key in call.get("sources", ()))
    console().print(trajectory_view(found, addresses))


@click.command(
    short_help="Where a row comes from; the tree of a question.", epilog="Example:  treadle lineage 3f2a --run first"
)
@click.argument("key")
@run_option
@root_option
@json_option
def lineage(key: str, run_id: str, root: str | Path, as_json: bool) -> None:
    """Show where a row comes from and what became of it.

    KEY is the key of a question, a rollout or a trajectory of `pools`. It is traced back to the source file, and on to
    its verdicts. If the question has a pool, the whole tree is shown: what each operator made from which trajectory,
    failed attempts, and which trajectories became fine-tuning rows.
    """
    from treadle.cli.views.lineage import lineage_tree
    from treadle.cli.views.tables import console
    from treadle.core.runs.run import Run
    from treadle.tasks.inspection.lineage import trace_back

    steps = trace_back(Run.open(root, run_id), key)
    if as_json:
        click.echo(sanitized_json([step.as_dict() for step in steps]))
        return
    console().print(lineage_tree(steps))


@click.command(short_help="Hash every artifact again.", epilog="Example:  treadle verify --run first")
@run_option
@root_option
@json_option
def verify(run_id: str, root: str | Path, as_json: bool) -> None:
    """Hash every artifact of a run again and compare with the records; also check the records for changes.

    The web searches and pages that the run has recorded are read, and the web record that it replays from is hashed
    too.
    """
    from treadle.core.errors import ArtifactError
    from treadle.core.runs.run import Run
    from treadle.web.record.run_entries import verify_web

    run = Run.open(root, run_id)
    web = verify_web(run)
    problems = run.verify() | web
    if as_json:
        click.echo(sanitized_json(problems))
    else:
        for artifact, found in problems.items():
            click.echo(f"{'damaged' if found else 'ok':<8} {artifact}")
            for problem in found:
                click.echo(f"         {one_line(problem)}")
            for command in _commands(run, [artifact]) if found else ():
                click.echo(f"         run again with: {command}")
    damaged = [artifact for artifact, found in problems.items() if found]
    if records := [key for key in damaged if key.startswith("runs/")]:
        raise ArtifactError(
            f"{len(damaged)} of {len(problems)} artifacts and records of run {run_id} are damaged; "
            f"repair this one first, then verify again: {problems[records[0]][0]}"
        )
    if outside := [place for place in damaged if place in web]:
        raise ArtifactError(f"the web record {outside[0]} is damaged: {web[outside[0]][0]}")
    if damaged:
        raise ArtifactError(
            f"{len(damaged)} of {len(problems)} artifacts of run {run_id} are damaged; "
            f"run them again with: {'; '.join(_commands(run, damaged))}"
        )


def _commands(run: Run, artifacts: list[str]) -> list[str]:
    """Return the commands that make these artifacts again, earlier stages first."""
    from treadle.cli.views.tables import run_options
    from treadle.tasks.planning.run_setup import known_addresses

    records, _ = run.readable_records()
    makers = {record.address for record in records for ref in record.outputs.values() if ref.folder in artifacts}
    order = [str(address) for address in known_addresses(run)]
    ordered = [*filter(makers.__contains__, order), *sorted(makers.difference(order))]
    options = run_options(run.run_id, run.storage.location())
    return [f"treadle stage {address} {options} --force" for address in ordered]
