"""Making the instances of a flow one after the other: what commands, demo and Prefect flows have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from treadle.core.attempt import Helped
from treadle.core.engines.cache import Notify, quiet
from treadle.core.execute import execute, state_of
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.core.stage import Instance, Progress
from treadle.tasks.config import TreadleConfig
from treadle.tasks.forced import forced_run, is_forced
from treadle.tasks.imported import imported_from
from treadle.tasks.plan import check_import
from treadle.tasks.serving.servers import ModelServers


@dataclass(frozen=True, slots=True)
class Turn:
    """An instance whose turn it is.

    Attributes:
        force: Whether it is made although there is a result of it.
        servers: Those of the flow.
    """

    instance: Instance
    force: bool
    servers: ModelServers


@contextmanager
def making(
    instances: Sequence[Instance],
    run: Run,
    config: TreadleConfig,
    *,
    force: bool = False,
    is_part: bool = False,
    notify: Notify = quiet,
) -> Iterator[Iterator[Turn]]:
    """A block in which the instances of a flow are made: yields their turns, each of which is to be used up before the
    next.

    Servers of models that one turn has started are there for the next ones, and gone at the end of the block. `force`
    makes all again but what was imported, and goes on where such a run was cut off; `is_part` says that these instances
    are not all of the flow. `notify` is told of servers, of waiting for GPUs, and of what is not made again. Raises as
    `ModelServers` does, and what is raised within.
    """
    addresses = [item.address for item in instances]
    if force:
        for address in addresses:
            if file := imported_from(address, run):
                notify(
                    f"{address} was imported from {file}, and stays; make it with: treadle stage {address} "
                    f"--run {run.run_id} --force"
                )
    with (
        forced_run(run, addresses, force=force, is_part=is_part) as again,
        ModelServers(run, instances, forced=again, wait_s=config.flow.device_wait_s, notify=notify) as servers,
    ):
        yield (Turn(item, is_forced(item, run, again), servers) for item in instances)


def run_instance(
    instance: Instance,
    run: Run,
    *,
    force: bool = False,
    accept_failures: bool = False,
    progress: Progress | None = None,
    servers: ModelServers | None = None,
    helped: Helped | None = None,
) -> StageRecord:
    """`execute`, with servers of models around it where the configuration asks for some and there is work to do.

    `servers` are those of the flow that the instance is part of; without them it has its own. Raises RunError, too,
    where the result in force was imported and would be made anew, unless that is forced.
    """
    if not force:
        check_import(instance, run)
    with ExitStack() as stack:
        servers = servers if servers is not None else stack.enter_context(ModelServers(run))
        served = stack.enter_context(servers.around(instance, lambda: force or state_of(instance, run) == "run"))
        return execute(served, run, force=force, accept_failures=accept_failures, progress=progress, helped=helped)
