"""The Prefect flows: all stages of a run, and one stage of a run.

Prefect runs this file as a script under its stem, so it holds flows and nothing else.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow, get_run_logger

from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig
from treadle.tasks.forced import forced_run
from treadle.tasks.running import as_begun, open_run, resolve_config
from treadle.tasks.stages import run_stage


@flow(name="flywheel", flow_run_name="{run_id}")
def flywheel(
    run_id: str,
    config_file: Path | None = None,
    config: TreadleConfig | None = None,
    root: str = "outputs",
    force: bool = False,
    accept_failures: bool = False,
) -> None:
    """Run every stage of one run, skipping those whose inputs and settings did not change, unless `force` is set.

    `config_file` is a TOML file; keys given in `config` win over it. With neither, the run must exist, and its own
    configuration is used. `root` is a folder, counted from where the flow runs, or `s3://bucket/prefix`.
    """
    resolved = as_begun(resolve_config(root, run_id, config_file, config), root, run_id)
    instances = flow_instances(resolved)
    run = open_run(root, run_id, resolved, (config_file,) if config_file else ())
    get_run_logger().info("run %s in %s", run.run_id, run.storage.location())
    with forced_run(run, [item.address for item in instances] if force else ()) as again:
        for item in instances:
            run_stage(
                str(item.address), run_id, root, resolved, force=item.address in again, accept_failures=accept_failures
            )


@flow(name="stage", flow_run_name="{run_id} {instance}")
def stage(
    run_id: str,
    instance: str,
    config_file: Path | None = None,
    config: TreadleConfig | None = None,
    root: str = "outputs",
    force: bool = False,
    accept_failures: bool = False,
) -> None:
    """Run one stage instance, such as `1/rollouts@base` or `1/rl@phase-2`, of a run."""
    resolved = as_begun(resolve_config(root, run_id, config_file, config), root, run_id)
    open_run(root, run_id, resolved, (config_file,) if config_file else ())
    run_stage(instance, run_id, root, resolved, force=force, accept_failures=accept_failures)
