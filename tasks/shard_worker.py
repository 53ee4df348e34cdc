"""Work on shards of stage instances that another process runs: the logic of `treadle work`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from treadle.core.companions.running import running_companions
from treadle.core.engines.cache import Notify, quiet
from treadle.core.runs.address import Address
from treadle.core.runs.execute import planned_action
from treadle.core.runs.helping import NoOpenShards, check_sharded, has_free_shards, help_instance
from treadle.core.runs.locked_config import check_config
from treadle.core.runs.run import Run, run_exists
from treadle.core.runs.stage import Instance, Progress
from treadle.core.store.leases import watch_leases
from treadle.stages.registry import stage_entry
from treadle.tasks.catalog import instance, semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.planning.run_setup import stored_config, with_run_defaults
from treadle.tasks.serving.servers import ModelServers

POLL_S = 5.0
"""Poll interval of a process that waits for work."""

ShowProgress = Callable[[str], AbstractContextManager[Progress]]
"""Label -> context manager that yields a progress listener."""


def worker_config(run: Run, root: str | Path, overrides: Sequence[str]) -> TreadleConfig:
    """Return the run's configuration with this process's own operational keys; nothing is written.

    Raises RunError if it would give other results than the run's configuration.
    """
    config = stored_config(run, overrides)
    config = with_run_defaults(config, root, run.run_id)
    check_config(run, semantic_of(config), TreadleConfig)
    return config


def open_for_work(
    root: str | Path, run_id: str, address: str, overrides: Sequence[str] = ()
) -> tuple[Instance, Run, TreadleConfig]:
    """Return an instance, its run and the configuration.

    Raises RunError if there is no such run, and as `worker_config` does.
    """
    run = Run.open(root, run_id)
    config = worker_config(run, root, overrides)
    return instance(config, Address.parse(address)), run, config


def work_at(
    wanted: Instance,
    run: Run,
    config: TreadleConfig,
    *,
    progress: Progress | None = None,
    notify: Notify = quiet,
) -> int:
    """Work on shards of an instance until no shard is left to claim; return how many this process worked through.

    This process starts the companions and model servers that the configuration asks for, except companions that already
    run on this machine; it waits for the GPUs of model servers first. Errors: see `help_instance`, and EngineError as
    in `running_companions` and `ModelServers.serving`.
    """
    watch = watch_leases(run.storage)
    if not has_free_shards(wanted, run, watch):
        return 0
    with (
        running_companions(config.companions, notify),
        ModelServers(run, wait_s=config.flow.device_wait_s, notify=notify) as servers,
        servers.serving(wanted, lambda: has_free_shards(wanted, run, watch)) as served,
    ):
        return help_instance(served, run, progress=progress, watch=watch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A process that helps with a run, one instance after the other.

    Attributes:
        root: The root, as a folder or URL.
        run_id: Name of the run.
        address: The only instance to help with; None for all instances of the run's flow.
        overrides: `KEY=VALUE` of operational keys of this process.
        show: Shows the progress of an instance.
        notify: Receives messages about waiting and servers.
        counts: Shards worked through by this process so far, by instance.
    """

    root: str | Path
    run_id: str
    address: str | None
    overrides: Sequence[str]
    show: ShowProgress
    notify: Notify = quiet
    counts: dict[str, int] = field(default_factory=dict)

    def help_now(self) -> None:
        """Help with sharded instances that are running now; raise NoOpenShards if the named one is not running."""
        run = Run.open(self.root, self.run_id)
        items, config = self._wanted(run)
        for item in items:
            try:
                self._help(item, run, config)
            except NoOpenShards:
                if self.address:
                    raise

    def help_until_done(self) -> None:
        """Help until all sharded instances have a result, waiting for the run and its instances to start.

        Raises what a stage raises, and RunError if the configuration does not match the run's.
        """
        last_message = ""
        while not run_exists(self.root, self.run_id):
            last_message = self._wait(f"waiting for run {self.run_id} in {self.root}", last_message)
        run, known, items, config = Run.open(self.root, self.run_id), None, list[Instance](), TreadleConfig()
        while True:
            # Building instances reads corpora for their digests, so do it only when the configuration changes.
            if known != (known := run.config()):
                items, config = self._wanted(run)
            left = [item for item in items if planned_action(item, run) != "reuse"]
            if not left:
                return
            if not any([self._help_if_begun(item, run, config) for item in left]):
                last_message = self._wait(
                    f"waiting for shards of {', '.join(str(item.address) for item in left)}", last_message
                )

    def _wanted(self, run: Run) -> tuple[list[Instance], TreadleConfig]:
        """Return the instances to help with, and the configuration."""
        config = worker_config(run, self.root, self.overrides)
        if self.address:
            named = instance(config, Address.parse(self.address))
            check_sharded(named)
            return [named], config
        shared = [one for one in flow_addresses(config) if stage_entry(one.stage).stage.work is not None]
        return [instance(config, one) for one in shared], config

    def _help_if_begun(self, item: Instance, run: Run, config: TreadleConfig) -> int:
        try:
            return self._help(item, run, config)
        except NoOpenShards:
            return 0

    def _help(self, item: Instance, run: Run, config: TreadleConfig) -> int:
        address = str(item.address)
        with self.show(address) as progress:
            count = work_at(item, run, config, progress=progress, notify=self.notify)
        self.counts[address] = self.counts.get(address, 0) + count
        return count

    def _wait(self, what: str, last_message: str) -> str:
        if what != last_message:
            self.notify(what)
        time.sleep(POLL_S)
        return what


def shards_text(count: int) -> str:
    """Return how many shards were worked through, as a message."""
    return f"{count} shard{'s' * (count != 1)} processed here" if count else "nothing left to help with"
