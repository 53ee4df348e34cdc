"""Define the commands that run stages: `run`, `stage`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import named_run_option, say
from treadle.cli.shown_runs import prefect_wanted, run_shown, shown_companions, shown_flow_run
from treadle.cli.work_options import WorkOptions, work_options

if TYPE_CHECKING:
    from treadle.cli.views.progress import ProgressView
    from treadle.tasks.config import TreadleConfig


@click.command(epilog="Example:  treadle run configs/laptop.toml --run first --set rollouts.samples_per_question=2")
@click.option(
    "-r", "--run", "run_id", metavar="NAME", required=True, help="Name of the run; an existing one is resumed."
)
@click.option(
    "--from",
    "start_from",
    metavar="INSTANCE",
    help="Start from this instance, such as 2/sft; use earlier results as they are.",
)
@click.option(
    "--without", multiple=True, metavar="INSTANCE", help="Skip this instance, reusing its result if there is one."
)
@click.option(
    "--from-record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use the configuration in this record of a launch, runs/NAME/launches/*.json.",
)
@work_options
def run(
    asked: WorkOptions, run_id: str, start_from: str | None, without: tuple[str, ...], from_record: Path | None
) -> None:
    """Run all stages of a run, or continue it.

    Several CONFIG files are merged, later ones win. Without one, the run's own configuration is used.
    """
    from treadle.tasks.planning.run_setup import configuration_of, recorded_config

    if from_record is not None and asked.configs:
        raise click.UsageError("--from-record has a whole configuration; name no CONFIG with it")
    if from_record is not None:
        config = recorded_config(from_record, asked.overrides)
    else:
        config = configuration_of(asked.root, run_id, asked.configs, asked.overrides)
    run_flow(config, run_id, asked, start_from, without)


def run_flow(
    config: TreadleConfig,
    run_id: str,
    asked: WorkOptions,
    start_from: str | None = None,
    without: tuple[str, ...] = (),
) -> None:
    """Run the instances of a configuration's flow, or a part of them, or continue them, and print a summary."""
    from treadle.cli.views.progress import ProgressView

    if asked.dry_run:
        _show_plan(config, run_id, asked, start_from, without)
        return
    as_flow = prefect_wanted(asked.with_prefect, config)
    view = ProgressView(quiet=asked.as_json)
    # Checks of the run ask model servers and search services, which may be companions.
    with shown_companions(config, view):
        _run_part(config, run_id, asked, view, start_from, without, as_flow=as_flow)


def _show_plan(
    config: TreadleConfig, run_id: str, asked: WorkOptions, start_from: str | None, without: tuple[str, ...]
) -> None:
    from treadle.cli.views.run_plan import print_plan
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.planning.flow_part import flow_part
    from treadle.tasks.planning.run_setup import with_run_defaults
    from treadle.tasks.planning.web_checks import web_problem

    config = with_run_defaults(config, asked.root, run_id, ask=False)
    instances = flow_instances(config)
    part = flow_part(instances, asked.root, run_id, start_from, without)
    print_plan(
        config, instances, asked.root, run_id, asked.force, asked.as_json, part, allow_changes=asked.allow_changes
    )
    if problem := web_problem(config):
        say(f"warning: {problem}")


def _run_part(
    config: TreadleConfig,
    run_id: str,
    asked: WorkOptions,
    view: ProgressView,
    start_from: str | None,
    without: tuple[str, ...],
    *,
    as_flow: bool,
) -> None:
    from treadle.cli.views.summary import print_end
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.planning.flow_part import flow_part
    from treadle.tasks.planning.run_setup import open_run, with_run_defaults
    from treadle.tasks.run_instances import run_instances

    root = asked.root
    config = with_run_defaults(config, root, run_id)
    part = flow_part(flow_instances(config), root, run_id, start_from, without)
    for line in part.lines():
        say(line)
    opened = open_run(root, run_id, config, asked.configs, allow_changes=asked.allow_changes)
    if as_flow:
        given: dict[str, Any] = {"config": config, "root": str(root), "start_from": start_from, "without": without}
        with shown_flow_run(view):
            from treadle.flows.flywheel import flywheel

            flywheel(run_id=run_id, force=asked.force, accept_failures=asked.accept_failures, **given)
    else:
        with run_instances(
            part.instances, opened, config, force=asked.force, is_part=part.is_part, notify=view.tell
        ) as scheduled_instances:
            for scheduled in scheduled_instances:
                run_shown(scheduled, opened, view, asked.accept_failures)
    print_end(opened, view.records, asked.as_json)


@click.command(epilog="Example:  treadle stage 1/scores@base --run first --force")
@click.argument("address", metavar="INSTANCE")
@named_run_option
@click.option(
    "--retry",
    multiple=True,
    metavar="STATUS",
    help="Run only rows of its result again that ended with this status, such as timeout.",
)
@work_options
def stage(asked: WorkOptions, address: str, run_id: str, retry: tuple[str, ...]) -> None:
    """Run one stage INSTANCE, such as 1/rollouts@base or 1/rl@phase-2, of a run."""
    from treadle.cli.views.progress import ProgressView
    from treadle.core.runs.address import Address
    from treadle.tasks.catalog import instance
    from treadle.tasks.planning.run_setup import configuration_of, with_run_defaults

    root, force = asked.root, asked.force
    if retry and (force or asked.dry_run):
        raise click.UsageError("--retry cannot be combined with --force or --dry-run")
    config = configuration_of(root, run_id, asked.configs, asked.overrides)
    if asked.dry_run:
        from treadle.cli.views.run_plan import print_plan

        config = with_run_defaults(config, root, run_id, ask=False)
        wanted = instance(config, Address.parse(address))
        print_plan(
            config,
            [wanted],
            root,
            run_id,
            force,
            asked.as_json,
            by_name=True,
            allow_changes=asked.allow_changes,
        )
        return
    as_flow = prefect_wanted(asked.with_prefect, config)
    view = ProgressView(quiet=asked.as_json)
    with shown_companions(config, view):
        _run_stage(config, address, run_id, asked, view, retry, as_flow=as_flow)


def _run_stage(
    config: TreadleConfig,
    address: str,
    run_id: str,
    asked: WorkOptions,
    view: ProgressView,
    retry: tuple[str, ...],
    *,
    as_flow: bool,
) -> None:
    from treadle.cli.views.summary import print_end
    from treadle.core.runs.address import Address
    from treadle.tasks.catalog import instance
    from treadle.tasks.planning.run_setup import open_run, with_run_defaults
    from treadle.tasks.run_instances import ScheduledInstance
    from treadle.tasks.serving.servers import ModelServers

    root, force = asked.root, asked.force
    config = with_run_defaults(config, root, run_id)
    wanted = instance(config, Address.parse(address))
    opened = open_run(root, run_id, config, asked.configs, allow_changes=asked.allow_changes)
    if as_flow:
        given: dict[str, Any] = {"config": config, "root": str(root), "retry": retry}
        with shown_flow_run(view):
            from treadle.flows.flywheel import stage as stage_flow

            stage_flow(run_id=run_id, instance=address, force=force, accept_failures=asked.accept_failures, **given)
    else:
        with ModelServers(opened, wait_s=config.flow.device_wait_s, notify=view.tell) as servers:
            scheduled = ScheduledInstance(wanted, force, servers)
            run_shown(scheduled, opened, view, asked.accept_failures, frozenset(retry))
    print_end(opened, view.records, asked.as_json)
