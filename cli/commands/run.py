"""Define the commands that run stages: `run`, `stage`, `demo`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.options import json_option, options_object, root_option, say, set_option
from treadle.cli.warnings import show_warnings
from treadle.tasks.prefect.settings import as_flow_run

if TYPE_CHECKING:
    from treadle.cli.views.progress import ProgressView
    from treadle.core.runs.run import Run
    from treadle.tasks.config import TreadleConfig
    from treadle.tasks.run_instances import ScheduledInstance


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """Options of commands that run stages."""

    configs: tuple[Path, ...]
    dry_run: bool
    overrides: tuple[str, ...]
    root: str | Path
    as_json: bool
    with_prefect: bool
    accept_failures: bool
    force: bool


work_options = options_object(
    WorkOptions,
    click.argument("configs", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[CONFIG.toml]..."),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print the plan, its reasons and the estimated cost (--json: also the whole configuration).",
    ),
    set_option,
    root_option,
    json_option,
    click.option("--prefect", "with_prefect", is_flag=True, help="Run as a Prefect flow run (needs PREFECT_API_URL)."),
    click.option(
        "--accept-failures", is_flag=True, help="Write unfinished units as failed rows, and drop invalid ones."
    ),
    click.option(
        "--force", is_flag=True, help="Run again even if nothing changed (`run`: equal work once; imports are kept)."
    ),
)
"""Options of commands that run stages, passed to them as `WorkOptions`."""


@click.command(epilog="Example:  treadle run configs/laptop.toml --run first --set rollouts.samples_per_question=2")
@click.option("--run", "run_id", required=True, help="Name of the run; an existing one is resumed.")
@click.option(
    "--from",
    "start_from",
    metavar="INSTANCE",
    help="Start from this instance, such as 2/sft; use earlier results as they are.",
)
@click.option(
    "--without", multiple=True, metavar="INSTANCE", help="Skip this instance, reusing its result if there is one."
)
@work_options
def run(asked: WorkOptions, run_id: str, start_from: str | None, without: tuple[str, ...]) -> None:
    """Run all stages of a run, or continue it.

    Several CONFIG files are merged, later ones win. Without one, the run's own configuration is used.
    """
    from treadle.tasks.planning.run_setup import configuration_of

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
    from treadle.cli.views.summary import print_end, print_plan
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.planning.flow_part import flow_part
    from treadle.tasks.planning.run_setup import open_run, with_run_defaults
    from treadle.tasks.run_instances import run_instances

    root = asked.root
    as_flow = not asked.dry_run and _prefect_wanted(asked.with_prefect, config)
    config = with_run_defaults(config, root, run_id, ask=not asked.dry_run)
    instances = flow_instances(config)
    part = flow_part(instances, root, run_id, start_from, without)
    if asked.dry_run:
        print_plan(config, instances, root, run_id, asked.force, asked.as_json, part)
        _warn_of_web(config)
        return
    for line in part.lines():
        say(line)
    opened = open_run(root, run_id, config, asked.configs)
    view = ProgressView(quiet=asked.as_json)
    if as_flow:
        given: dict[str, Any] = {"config": config, "root": str(root), "start_from": start_from, "without": without}
        with _shown_flow_run(view):
            from treadle.flows.flywheel import flywheel

            flywheel(run_id=run_id, force=asked.force, accept_failures=asked.accept_failures, **given)
    else:
        with run_instances(
            part.instances, opened, config, force=asked.force, is_part=part.is_part, notify=view.tell
        ) as scheduled_instances:
            for scheduled in scheduled_instances:
                _execute(scheduled, opened, view, asked.accept_failures)
    print_end(opened, view.records, asked.as_json)


@click.command(epilog="Example:  treadle stage 1/scores@base --run first --force")
@click.argument("address", metavar="INSTANCE")
@click.option("--run", "run_id", required=True, help="Name of the run.")
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
    from treadle.cli.views.summary import print_end, print_plan
    from treadle.core.runs.address import Address
    from treadle.tasks.catalog import instance
    from treadle.tasks.planning.run_setup import configuration_of, open_run, with_run_defaults
    from treadle.tasks.run_instances import ScheduledInstance
    from treadle.tasks.serving.servers import ModelServers

    root, force = asked.root, asked.force
    if retry and (force or asked.dry_run):
        raise click.UsageError("--retry cannot be combined with --force or --dry-run")
    config = configuration_of(root, run_id, asked.configs, asked.overrides)
    as_flow = not asked.dry_run and _prefect_wanted(asked.with_prefect, config)
    config = with_run_defaults(config, root, run_id, ask=not asked.dry_run)
    wanted = instance(config, Address.parse(address))
    if asked.dry_run:
        print_plan(config, [wanted], root, run_id, force, asked.as_json, by_name=True)
        return
    opened = open_run(root, run_id, config, asked.configs)
    view = ProgressView(quiet=asked.as_json)
    if as_flow:
        given: dict[str, Any] = {"config": config, "root": str(root), "retry": retry}
        with _shown_flow_run(view):
            from treadle.flows.flywheel import stage as stage_flow

            stage_flow(run_id=run_id, instance=address, force=force, accept_failures=asked.accept_failures, **given)
    else:
        with ModelServers(opened, wait_s=config.flow.device_wait_s, notify=view.tell) as servers:
            scheduled = ScheduledInstance(wanted, force, servers)
            _execute(scheduled, opened, view, asked.accept_failures, frozenset(retry))
    print_end(opened, view.records, asked.as_json)


def _warn_of_web(config: TreadleConfig) -> None:
    """Warn about missing prerequisites of web search."""
    from treadle.core.errors import ArtifactError, ConfigError
    from treadle.tasks.planning.run_setup_checks import check_web

    try:
        check_web(config)
    except (ArtifactError, ConfigError) as problem:
        say(f"warning: {problem}")


def _prefect_wanted(flag: bool, config: TreadleConfig) -> bool:
    """Return whether PREFECT_API_URL asks for a flow run; then also load API keys from Prefect into the environment.

    The keys are loaded before the flow run begins, because checking model servers and search services may need them.
    Raises ConfigError if the flag is set and no server is named.
    """
    from treadle.core.errors import ConfigError
    from treadle.tasks.doctor import require_prefect

    server = os.environ.get("PREFECT_API_URL")
    if flag and not server:
        raise ConfigError(
            "--prefect needs PREFECT_API_URL: start `treadle prefect up` and set it to http://127.0.0.1:4200/api"
        )
    if not server:
        return False
    require_prefect(server)
    with as_flow_run():
        from treadle.tasks.prefect.flow_runs import keys_from_blocks

        keys_from_blocks(config)
    return True


@contextmanager
def _shown_flow_run(view: ProgressView) -> Iterator[None]:
    """Show a flow that this process calls itself as if it ran without Prefect."""
    with as_flow_run(view):
        warnings = show_warnings("prefect", "the flow run's log in Prefect")
        try:
            yield
        finally:
            warnings.report_omitted()


def _execute(
    scheduled: ScheduledInstance,
    run: Run,
    view: ProgressView,
    accept_failures: bool = False,
    retry: Set[str] = frozenset(),
) -> None:
    """Run an instance in this process and show its progress."""
    from treadle.core.parent_watch import end_with_parent, outlives_parent
    from treadle.tasks.run_instances import run_instance

    if not outlives_parent():
        end_with_parent()
    # What code of the user prints must not get between the lines of our own output, which may be JSON.
    with view.running(scheduled.instance, run) as progress, redirect_stdout(sys.stderr):
        record = run_instance(
            scheduled.instance,
            run,
            force=scheduled.force,
            accept_failures=accept_failures,
            retry=retry,
            progress=progress,
            servers=scheduled.servers,
            notify=view.tell,
        )
    view.made(record)


@click.command(short_help="Run a small end-to-end demo on this machine.", epilog="Example:  treadle demo --prefect")
@click.option("--fresh", is_flag=True, help="Start a new demo run instead of continuing the last one.")
@click.option("--tutor-only", is_flag=True, help="Run only the tutor: no models, training or engines (9 GB).")
@click.option(
    "--prefect", "with_prefect", is_flag=True, help="Run in Prefect; without a server, a temporary one is started."
)
@set_option
@root_option
def demo(fresh: bool, tutor_only: bool, with_prefect: bool, overrides: tuple[str, ...], root: str | Path) -> None:
    """Train a small model on what the flywheel makes, and measure what it learned.

    Creates a fictional world with questions about it. A rule-based tutor answers some of them with search and Python,
    its mistakes are repaired, and right trajectories become rows to train on. SmolLM2-135M is fine-tuned on them, then
    trained by reinforcement learning, and answers held-out questions before and after each, with the same tools. If it
    is stopped or killed, run it again and it continues.

    Each step shows its progress and the time left. vLLM, LLaMA-Factory and TRL are installed once, in 5 to 9 minutes.
    """
    from treadle.cli.views.progress import ProgressView
    from treadle.cli.views.summary import print_demo_end
    from treadle.core.errors import ConfigError, RunError
    from treadle.demo.quickstart import demo_configuration
    from treadle.demo.steps import DemoSteps
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.planning.run_setup import open_run

    if not isinstance(root, Path):
        raise ConfigError("the demo writes its world next to its run: give a local folder as --root")
    run_id, config = demo_configuration(root, fresh=fresh, tutor_only=tutor_only, overrides=overrides, notify=say)
    instances = flow_instances(config)
    try:
        opened = open_run(root, run_id, config)
    except RunError as error:
        raise RunError(f"{error}; or start over with: treadle demo --fresh") from error
    view = ProgressView(steps=DemoSteps(instances, opened, timed=not (tutor_only or overrides)))
    with ExitStack() as stack:
        server = None
        if with_prefect or os.environ.get("PREFECT_API_URL"):
            from treadle.tasks.prefect.available_server import available_server

            server = stack.enter_context(available_server(say))
        _make_demo(opened, config, view, as_flow=server is not None)
        print_demo_end(opened, view.records, config.flow.models)
        if server is not None and view.url:
            click.echo(f"the flow run in Prefect: {server.url_after_exit(view.url)}")


def _make_demo(run: Run, config: TreadleConfig, view: ProgressView, *, as_flow: bool) -> None:
    """Run all instances of the demo, with or without a flow run."""
    from treadle.tasks.catalog import flow_instances
    from treadle.tasks.run_instances import run_instances

    if as_flow and _made_in_flow_run(run, config, view):
        return
    with run_instances(flow_instances(config), run, config, notify=view.tell) as scheduled_instances:
        for scheduled in scheduled_instances:
            _execute(scheduled, run, view)


def _made_in_flow_run(run: Run, config: TreadleConfig, view: ProgressView) -> bool:
    """Run all instances of the demo in a flow run; return False, after a message, if Prefect fails."""
    from treadle.core.untrusted.sanitize import one_line
    from treadle.tasks.prefect.available_server import is_prefect_error

    try:
        with _shown_flow_run(view):
            from treadle.flows.flywheel import flywheel

            flywheel(run_id=run.run_id, config=config, root=run.storage.location())
    except Exception as error:
        if not is_prefect_error(error):
            raise
        say(f"continuing without Prefect, which failed: {one_line(str(error) or type(error).__name__)}")
        view.records.clear()  # finished results are reported again, as reused
        return False
    return True
