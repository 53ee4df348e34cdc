"""Helping with a stage instance that another process runs: what `treadle work` does. Prefect-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treadle.core.config import load_config
from treadle.core.engines.cache import Notify, quiet
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance, Progress
from treadle.core.worker import has_open_shards, help_instance
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.running import as_begun, semantic_for, with_servers


def open_for_work(root: str | Path, run_id: str, address: str, overrides: Sequence[str]) -> tuple[Instance, Run]:
    """A run and one of its instances, with operational keys of this process's own; nothing is written.

    Raises RunError where there is no such run, or the configuration would give other results than the run's.
    """
    run = Run.open(root, run_id)
    config = load_config(TreadleConfig, (), overrides, base=run.config())
    config = as_begun(config, root, run_id)
    run.check_config(semantic_for(run, config), TreadleConfig)
    return instance(config, Address.parse(address)), run


def work_at(wanted: Instance, run: Run, *, progress: Progress | None = None, notify: Notify = quiet) -> int:
    """Work at shards of an instance until none is left to claim; returns how many were worked through here.

    Models that the configuration wants served are served by this process too. Errors: see `help_instance`.
    """
    if not has_open_shards(wanted, run):
        return 0
    with with_servers(wanted, run, notify) as served:
        return help_instance(served, run, progress=progress)
