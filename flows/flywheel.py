"""Define the Prefect flows: all stages of a run, one stage of a run, and a worker that helps with a stage.

Prefect runs this file as a script under its stem, so it contains only flows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import State, flow, get_run_logger
from prefect.states import Completed

from treadle.core.companions.running import running_companions
from treadle.core.errors import ConfigError
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.flow_part import flow_part
from treadle.tasks.planning.run_setup import open_run, resolve_config, with_run_defaults
from treadle.tasks.prefect.brief_errors import report_errors_briefly
from treadle.tasks.prefect.flow_runs import begin_flow_run, compact_events, flow_log
from treadle.tasks.prefect.helper_flow import help_from_flow
from treadle.tasks.prefect.run_names import flow_run_name, run_id_of
from treadle.tasks.prefect.settings import ParameterForm
from treadle.tasks.prefect.stage_task import run_stage
from treadle.tasks.run_instances import run_instances
from treadle.tasks.serving.servers import ModelServers


@flow(name="flywheel", flow_run_name=flow_run_name)
def flywheel(
    run_id: str | None = None,
    config_file: Path | None = None,
    config: Annotated[TreadleConfig, ParameterForm()] | None = None,
    root: str = "outputs",
    force: bool = False,
    accept_failures: bool = False,
    start_from: str | None = None,
    without: tuple[str, ...] = (),
) -> None:
    """Run every stage of one run, skipping those whose inputs and settings did not change.

    Args:
        run_id: Name of the run; an existing one is resumed. Empty: a new run named after the file and the planned time.
        config_file: TOML file. With neither this nor `config` the run must exist, and its own configuration is used.
        config: Keys that override the file's, or the whole configuration.
        root: Location of runs and data: a folder, relative to where the flow runs, or `s3://bucket/prefix`.
        force: Run all instances again; with `start_from` and `without` only the remaining ones.
        accept_failures: Count units that could not be finished as failed, up to each stage's `max_error_rate`.
        start_from: Instance to start from, such as `2/sft`; earlier results are reused, even if outdated.
        without: Instances to skip, reusing their results if there are any, such as `1/report`.
    """
    report_errors_briefly()
    if not (run_id or config_file or config):
        raise ConfigError("neither `run_id` nor `config_file` nor `config` is set; set one of them")
    run_id = run_id_of(run_id, config_file)
    wanted = resolve_config(root, run_id, config_file, config)
    begin_flow_run(wanted, run_id)
    with running_companions(wanted.companions, flow_log):
        resolved = with_run_defaults(wanted, root, run_id)
        part = flow_part(flow_instances(resolved), root, run_id, start_from, without)
        run = open_run(root, run_id, resolved, (config_file,) if config_file else ())
        get_run_logger().info("run %s in %s", run.run_id, run.storage.location())
        for line in part.lines():
            get_run_logger().info(line)
        given: dict[str, Any] = {"force": force, "is_part": part.is_part, "notify": flow_log}
        with run_instances(part.instances, run, resolved, **given) as scheduled_instances, compact_events():
            for scheduled in scheduled_instances:
                run_stage(
                    str(scheduled.instance.address),
                    run_id,
                    root,
                    resolved,
                    force=scheduled.force,
                    accept_failures=accept_failures,
                    servers=scheduled.servers,
                )


@flow(name="stage", flow_run_name="{run_id} {instance}")
def stage(
    run_id: str,
    instance: str,
    config_file: Path | None = None,
    config: Annotated[TreadleConfig, ParameterForm()] | None = None,
    root: str = "outputs",
    force: bool = False,
    accept_failures: bool = False,
    retry: tuple[str, ...] = (),
) -> None:
    """Run one stage instance of a run, unless its inputs and settings did not change.

    Args:
        run_id: Name of the run; an existing one is resumed.
        instance: What to run, such as `1/pools`, `1/rollouts@base` or `2/rl@phase-1`; its inputs must exist.
        config_file: TOML file. With neither this nor `config` the run must exist, and its own configuration is used.
        config: Keys that override the file's, or the whole configuration.
        root: Location of runs and data: a folder, relative to where the flow runs, or `s3://bucket/prefix`.
        force: Run it again although nothing changed.
        accept_failures: Count units that could not be finished as failed, up to the stage's `max_error_rate`.
        retry: Run only those rows of its result again that ended with one of these statuses, such as `timeout`.
    """
    report_errors_briefly()
    wanted = resolve_config(root, run_id, config_file, config)
    begin_flow_run(wanted, run_id, instance)
    with running_companions(wanted.companions, flow_log):
        resolved = with_run_defaults(wanted, root, run_id)
        run = open_run(root, run_id, resolved, (config_file,) if config_file else ())
        with ModelServers(run, wait_s=resolved.flow.device_wait_s, notify=flow_log) as servers, compact_events():
            given: dict[str, Any] = {"force": force, "accept_failures": accept_failures, "retry": retry}
            run_stage(instance, run_id, root, resolved, **given, servers=servers)


@flow(name="work", flow_run_name="{run_id} {instance} worker")
def work(run_id: str, instance: str, root: str) -> State[None]:
    """Help with a sharded stage instance that another flow run, `treadle run` or `treadle stage` is running.

    Flow runs with `flow.workers` above 0 start these automatically.

    Args:
        run_id: Name of the run.
        instance: The stage instance, such as `1/pools`.
        root: Location of the run: an absolute folder or `s3://bucket/prefix`.
    """
    report_errors_briefly()
    return Completed(message=help_from_flow(run_id, instance, root))
