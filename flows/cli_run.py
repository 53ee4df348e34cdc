"""Commands that do work: `run`, `stage`, `demo`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.flows.options import json_option, root_option, say
from treadle.flows.warnings import show_warnings

if TYPE_CHECKING:
    from treadle.core.records import StageRecord
    from treadle.core.runs import Run
    from treadle.core.stage import Instance
    from treadle.tasks.config import TreadleConfig

Command = Callable[..., Any]

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, as in rollouts.samples_per_question=8.",
)


dry_run_option = click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would be done and why, and what it may cost (--json: the whole configuration too).",
)


def work_options(command: Command) -> Command:
    """The options of commands that run stages."""
    for option in (
        click.option("--force", is_flag=True, help="Run again although nothing changed."),
        click.option(
            "--accept-failures",
            is_flag=True,
            help="Write what could not be finished as failed rows, leave bad ones out.",
        ),
        click.option("--prefect", "with_prefect", is_flag=True, help="As a Prefect flow run (needs PREFECT_API_URL)."),
        json_option,
        root_option,
        set_option,
    ):
        command = option(command)
    return command


@click.command(epilog="Example:  treadle run configs/laptop.toml --run first --set rollouts.samples_per_question=2")
@click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]...")
@click.option("--run", "run_id", required=True, help="Name of the run; an existing one is resumed.")
@dry_run_option
@work_options
def run(
    configs: tuple[Path, ...],
    run_id: str,
    overrides: tuple[str, ...],
    root: str | Path,
    dry_run: bool,
    force: bool,
    accept_failures: bool,
    with_prefect: bool,
    as_json: bool,
) -> None:
    """Run all stages of a run, or go on where it was.

    Several CONFIG files are merged, later ones win. Without one, the run's own configuration is used.
    """
    from treadle.tasks.running import configuration_of

    config = configuration_of(root, run_id, configs, overrides)
    run_flow(
        config,
        root,
        run_id,
        configs,
        dry_run=dry_run,
        force=force,
        accept_failures=accept_failures,
        with_prefect=with_prefect,
        as_json=as_json,
    )


def run_flow(
    config: TreadleConfig,
    root: str | Path,
    run_id: str,
    configs: tuple[Path, ...] = (),
    *,
    dry_run: bool,
    force: bool,
    accept_failures: bool,
    with_prefect: bool,
    as_json: bool,
) -> None:
    """Make all instances of a configuration's flow, or go on where they were, and print what came of it."""
    from treadle.flows.summary import print_end, print_plan
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.forced import forced_run
    from treadle.tasks.running import as_begun, open_run

    config = as_begun(config, root, run_id, ask=not dry_run)
    instances = flow_instances(config)
    if dry_run:
        print_plan(config, instances, root, run_id, force, as_json)
        _warn_of_web(config)
        return
    as_flow = _prefect_wanted(with_prefect)
    opened = open_run(root, run_id, config, configs)
    if as_flow:
        from treadle.flows.flywheel import flywheel

        flywheel(run_id=run_id, config=config, root=str(root), force=force, accept_failures=accept_failures)
        records = [record for item in instances if (record := opened.record(item.address)) is not None]
    else:
        with forced_run(opened, [item.address for item in instances] if force else ()) as again:
            records = [_execute(item, opened, item.address in again, accept_failures, as_json) for item in instances]
    print_end(opened, records, as_json)


@click.command(epilog="Example:  treadle stage 1/scores@base --run first --force")
@click.argument("address", metavar="INSTANCE")
@click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]...")
@click.option("--run", "run_id", required=True, help="Name of the run.")
@dry_run_option
@work_options
def stage(
    address: str,
    configs: tuple[Path, ...],
    run_id: str,
    overrides: tuple[str, ...],
    root: str | Path,
    dry_run: bool,
    force: bool,
    accept_failures: bool,
    with_prefect: bool,
    as_json: bool,
) -> None:
    """Run one stage INSTANCE, such as 1/rollouts@base or 1/rl@phase-2, of a run."""
    from treadle.core.stage import Address
    from treadle.flows.summary import print_end, print_plan
    from treadle.tasks.catalog import instance
    from treadle.tasks.running import as_begun, configuration_of, open_run

    config = configuration_of(root, run_id, configs, overrides)
    config = as_begun(config, root, run_id, ask=not dry_run)
    wanted = instance(config, Address.parse(address))
    if dry_run:
        print_plan(config, [wanted], root, run_id, force, as_json)
        return
    as_flow = _prefect_wanted(with_prefect)
    opened = open_run(root, run_id, config, configs)
    if as_flow:
        from treadle.flows.flywheel import stage as stage_flow

        stage_flow(
            run_id=run_id, instance=address, config=config, root=str(root), force=force, accept_failures=accept_failures
        )
        made = opened.record(wanted.address)
        print_end(opened, [made] if made else [], as_json)
        return
    print_end(opened, [_execute(wanted, opened, force, accept_failures, as_json)], as_json)


def _warn_of_web(config: TreadleConfig) -> None:
    """Say what is missing that a search of the web would need."""
    from treadle.core.errors import ArtifactError, ConfigError
    from treadle.tasks.running import check_web

    try:
        check_web(config)
    except (ArtifactError, ConfigError) as problem:
        say(f"warning: {problem}")


def _prefect_wanted(flag: bool) -> bool:
    """Whether the work is to be a flow run; raises ConfigError where no server is named."""
    import os

    from treadle.core.errors import ConfigError
    from treadle.tasks.doctor import prefect_answers

    server = os.environ.get("PREFECT_API_URL")
    if flag and not server:
        raise ConfigError(
            "--prefect needs PREFECT_API_URL: start `prefect server start` and set it to http://127.0.0.1:4200/api"
        )
    if server and not prefect_answers(server):
        raise ConfigError(
            f"the Prefect server of PREFECT_API_URL={server} does not answer; "
            "start it, or unset PREFECT_API_URL to run without Prefect"
        )
    return bool(server)


def _execute(instance: Instance, run: Run, force: bool, accept_failures: bool, quiet: bool) -> StageRecord:
    from treadle.core.parent import end_with_parent, stays_behind
    from treadle.flows.summary import made_text
    from treadle.flows.terminal import TerminalProgress
    from treadle.tasks.running import run_instance

    if not stays_behind():
        end_with_parent()

    warnings = show_warnings()
    try:
        with TerminalProgress(str(instance.address), quiet=quiet) as progress:
            record = run_instance(
                instance,
                run,
                force=force,
                accept_failures=accept_failures,
                progress=progress,
                notify=lambda line: None if quiet else say(line),
            )
    finally:
        warnings.tell_rest()
    if not quiet:
        click.echo(f"{instance.address}: {made_text(record)}", err=True)
    return record


@click.command(short_help="See a whole run on this machine alone.", epilog="Example:  treadle demo --fresh")
@click.option("--fresh", is_flag=True, help="Begin again instead of going on with the last demo run.")
@click.option("--tutor-only", is_flag=True, help="Without models and training, so without engines (9 GB).")
@set_option
@root_option
def demo(fresh: bool, tutor_only: bool, overrides: tuple[str, ...], root: str | Path) -> None:
    """Train a small model on what the flywheel makes, and see what it learnt.

    Makes a fictional world with questions about it. A rule-based tutor answers some with search and Python, its
    mistakes are repaired, and what is right becomes rows to train on. SmolLM2-135M is fine-tuned on them, then
    reinforced, and answers held-out questions before and after each, with the same tools. Killed or stopped, it goes on
    when it is run again.

    Each step shows its progress. vLLM, LLaMA-Factory and TRL are installed once, in 5 to 11 minutes.
    """
    from treadle.core.errors import ConfigError, RunError
    from treadle.demo.quickstart import demo_configuration
    from treadle.flows.summary import print_demo_end
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.running import open_run

    if not isinstance(root, Path):
        raise ConfigError("the demo keeps its world beside its run: give it a folder as --root")
    run_id, config = demo_configuration(root, fresh=fresh, tutor_only=tutor_only, overrides=overrides, notify=say)
    instances = flow_instances(config)
    try:
        opened = open_run(root, run_id, config)
    except RunError as error:
        raise RunError(f"{error}; or begin again with: treadle demo --fresh") from error
    records = []
    for number, instance in enumerate(instances, 1):
        _announce(instance, opened, f"step {number} of {len(instances)}")
        records.append(_execute(instance, opened, False, False, False))
    print_demo_end(opened, records, config.flow.models)


def _announce(instance: Instance, run: Run, which: str) -> None:
    """Say what a step of the demo is about to do, where there is something left to do."""
    from treadle.core.execute import state_of
    from treadle.demo.quickstart import step_words

    if (words := step_words(instance.address)) and state_of(instance, run) == "run":
        say(f"{which}: {words}")
