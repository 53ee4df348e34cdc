"""Commands that look and change nothing: `status`, `show`, `lineage`, `verify`."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.core.harmless import harmless_json, one_line
from treadle.flows.cli_run import json_option, root_option

run_option = click.option("--run", "run_id", required=True, help="Name of the run.")


@click.command(epilog="Example:  treadle status --run first --json")
@click.option("--run", "run_id", help="One run; without it, all runs under the root.")
@root_option
@json_option
def status(run_id: str | None, root: Path, as_json: bool) -> None:
    """What is finished, running, failed or crashed."""
    from treadle.core.runs import Run, list_runs
    from treadle.tasks.running import known_addresses

    if run_id is None:
        ids = list_runs(root)
        lines = ids or [f"no runs under {root}; start one with: treadle run CONFIG.toml --run NAME"]
        click.echo(harmless_json(ids) if as_json else "\n".join(lines))
        return
    run = Run.open(root, run_id)
    statuses = run.statuses(known_addresses(run))
    if as_json:
        click.echo(harmless_json([item.model_dump(mode="json") for item in statuses]))
        return
    from treadle.flows.render import console, status_table

    console().print(status_table(run_id, root, statuses))


@click.command(short_help="One trajectory, coloured.", epilog="Example:  treadle show 3f2a --run first")
@click.argument("key")
@run_option
@root_option
@json_option
def show(key: str, run_id: str, root: Path, as_json: bool) -> None:
    """One trajectory, coloured. KEY is a rollout key or an unambiguous beginning of one."""
    from treadle.core.runs import Run
    from treadle.flows.render import console, trajectory_panel
    from treadle.tasks.lineage import find_rollout

    found = find_rollout(Run.open(root, run_id), key)
    if as_json:
        click.echo(harmless_json(found.as_dict()))
        return
    console().print(trajectory_panel(found))


@click.command(short_help="Where a row comes from.", epilog="Example:  treadle lineage 3f2a --run first")
@click.argument("key")
@run_option
@root_option
@json_option
def lineage(key: str, run_id: str, root: Path, as_json: bool) -> None:
    """Where a row comes from: from a rollout or question KEY back to the source file, and on to its verdicts."""
    from treadle.core.runs import Run
    from treadle.flows.render import console, lineage_tree
    from treadle.tasks.lineage import trace_back

    steps = trace_back(Run.open(root, run_id), key)
    if as_json:
        click.echo(harmless_json([step.as_dict() for step in steps]))
        return
    console().print(lineage_tree(steps))


@click.command(short_help="Hash every artifact again.", epilog="Example:  treadle verify --run first")
@run_option
@root_option
@json_option
def verify(run_id: str, root: Path, as_json: bool) -> None:
    """Hash every artifact of a run again and compare with the records."""
    from treadle.core.errors import ArtifactError
    from treadle.core.runs import Run

    problems = Run.open(root, run_id).verify()
    if as_json:
        click.echo(harmless_json(problems))
    else:
        for artifact, found in problems.items():
            click.echo(f"{'damaged' if found else 'ok':<8} {artifact}")
            for problem in found:
                click.echo(f"         {one_line(problem)}")
    damaged = [artifact for artifact, found in problems.items() if found]
    if damaged:
        raise ArtifactError(
            f"{len(damaged)} of {len(problems)} artifacts of run {run_id} are damaged; "
            "run the stages that made them again with --force"
        )
