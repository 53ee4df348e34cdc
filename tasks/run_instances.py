"""Run the instances of a flow one after the other, for the commands, the demo and the Prefect flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from treadle.core.engines.cache import Notify, quiet
from treadle.core.runs.attempt import HelperScope
from treadle.core.runs.execute import execute, planned_action
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Progress
from treadle.tasks.config import TreadleConfig
from treadle.tasks.estimate.reruns import rerun_note
from treadle.tasks.planning.forced_runs import forced_run, imported_from, is_forced
from treadle.tasks.planning.plan import check_import
from treadle.tasks.serving.servers import ModelServers
from treadle.tasks.trackers.reporting import report_to_trackers, trackers_of


@dataclass(frozen=True, slots=True)
class ScheduledInstance:
    """An instance that is next to run.

    Attributes:
        force: True if it runs although it has a result.
        servers: Model servers of the flow.
    """

    instance: Instance
    force: bool
    servers: ModelServers


@contextmanager
def run_instances(
    instances: Sequence[Instance],
    run: Run,
    config: TreadleConfig,
    *,
    force: bool = False,
    is_part: bool = False,
    notify: Notify = quiet,
) -> Iterator[Iterator[ScheduledInstance]]:
    """Yield an iterator over the instances of a flow; the caller runs each instance before taking the next.

    Model servers that one instance started stay up for the next ones and are stopped at the end of the block. `force`
    runs everything again except imported results, and continues where an interrupted forced run stopped. `is_part`: the
    instances are not the whole flow. `notify` receives messages about servers, waiting for GPUs and kept imports.
    Raises as `ModelServers` does, and what the block raises.
    """
    addresses = [item.address for item in instances]
    if force:
        for address in addresses:
            if file := imported_from(address, run):
                notify(
                    f"{address} was imported from {file} and is kept; replace it with: treadle stage {address} "
                    f"--run {run.run_id} --force"
                )
    with (
        forced_run(run, addresses, force=force, is_part=is_part) as again,
        ModelServers(run, instances, forced=again, wait_s=config.flow.device_wait_s, notify=notify) as servers,
    ):
        yield (ScheduledInstance(item, is_forced(item, run, again), servers) for item in instances)


def run_instance(
    instance: Instance,
    run: Run,
    *,
    force: bool = False,
    accept_failures: bool = False,
    retry: Set[str] = frozenset(),
    progress: Progress | None = None,
    servers: ModelServers | None = None,
    helper_scope: HelperScope | None = None,
    notify: Notify = quiet,
) -> StageRecord:
    """Run `execute`, with running model servers if the configuration asks for them and there is work to do.

    `servers` are those of the flow that the instance is part of; by default it starts its own. `notify` is told
    beforehand which paid results are computed again, and of trackers that fail. Also raises RunError if an imported
    result would be replaced, unless forced, and ConfigError if the package of a tracker is missing.
    """
    trackers = trackers_of(run)
    if not force:
        check_import(instance, run)
    if (line := rerun_note(instance, run, force=force)) is not None:
        notify(line)
    with ExitStack() as stack:
        servers = servers if servers is not None else stack.enter_context(ModelServers(run))
        served = stack.enter_context(
            servers.serving(instance, lambda: bool(force or retry) or planned_action(instance, run) == "run")
        )
        record = execute(
            served,
            run,
            force=force,
            accept_failures=accept_failures,
            retry=retry,
            progress=progress,
            helper_scope=helper_scope,
        )
    report_to_trackers(trackers, record, run, notify)
    return record
