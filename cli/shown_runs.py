"""Run instances in this process or as a Prefect flow run, and show their progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from treadle.cli.warnings import show_warnings
from treadle.tasks.prefect.settings import as_flow_run

if TYPE_CHECKING:
    from treadle.cli.views.progress import ProgressView
    from treadle.core.runs.run import Run
    from treadle.tasks.config import TreadleConfig
    from treadle.tasks.run_instances import ScheduledInstance


def prefect_wanted(flag: bool, config: TreadleConfig) -> bool:
    """Return whether PREFECT_API_URL is set, so that a flow run is used; if so, load API keys from Prefect's blocks.

    The keys are loaded before the flow run begins, because checking model servers and search services may need them.
    Raises ConfigError if `flag` is set and PREFECT_API_URL is not, or if no server answers there.
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
def shown_companions(config: TreadleConfig, view: ProgressView) -> Iterator[None]:
    """Run the companions of a configuration during a block, and show what happens to them."""
    if not config.companions:
        yield
        return
    from treadle.core.companions.running import running_companions
    from treadle.core.parent_watch import end_with_parent, outlives_parent

    if not outlives_parent():
        end_with_parent()
    with running_companions(config.companions, view.tell):
        yield


@contextmanager
def shown_flow_run(view: ProgressView) -> Iterator[None]:
    """Show a flow that this process calls itself as if it ran without Prefect."""
    with as_flow_run(view):
        warnings = show_warnings("prefect", "the flow run's log in Prefect")
        try:
            yield
        finally:
            warnings.report_omitted()


def run_shown(
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
