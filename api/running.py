"""Run flows and evaluations in this process, from scripts and notebooks.

Progress and warnings go to standard error. Errors are raised; nothing exits the process or touches its signals.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from treadle.cli.views.progress import ProgressView
from treadle.cli.warnings import show_warnings
from treadle.core.companions.running import running_companions
from treadle.core.config import load_config, merge
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.tasks.analysis.run_results import RunResults
from treadle.tasks.catalog import flow_instances, instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.evaluation import EvalOptions, evaluation_config, run_name, unknown_template
from treadle.tasks.planning.flow_part import flow_part
from treadle.tasks.planning.run_setup import configuration_of, open_run, with_run_defaults
from treadle.tasks.run_instances import ScheduledInstance, run_instance, run_instances
from treadle.tasks.serving.servers import ModelServers

Config = str | Path | Mapping[str, Any] | TreadleConfig
T = TypeVar("T")

TOOLS = frozenset({"python", "search"})
"""Tools of an evaluation, as `treadle eval --tools` takes them."""


def evaluated(
    options: Mapping[str, Any],
    name: str | None,
    root: str | Path,
    config: str | Path | Sequence[str | Path],
    overrides: Sequence[str],
    **how: Any,
) -> RunResults:
    """Run an evaluation; `options` has fields of `EvalOptions` by name, and `how` is passed to `ran`."""
    files = [Path(one) for one in _listed(config)]
    asked = EvalOptions(**options)
    if unknown := sorted((asked.tools or frozenset()) - TOOLS):
        raise ConfigError(f"tools names {unknown[0]!r}; there are {' and '.join(sorted(TOOLS))}, or none as []")
    if asked.max_questions is not None and asked.max_questions < 1:
        raise ConfigError(f"max_questions is {asked.max_questions}; it must be at least 1")
    run_id = name or run_name(asked, files)
    resolved = evaluation_config(asked, root, run_id, files, tuple(overrides))
    for model in unknown_template(resolved):
        ProgressView().tell(
            f"warning: {model} is prompted in ChatML; if its chat template differs, give its folder as `tokenizer`"
        )
    return outside_event_loop(lambda: ran(resolved, run_id, root, files, **how))


def flow_ran(
    config: Config | Sequence[Config] | None,
    name: str,
    root: str | Path,
    overrides: Sequence[str],
    start_from: str | None,
    without: Sequence[str],
    **how: Any,
) -> RunResults:
    """Run a flow or a part of it; `config` as `run_flow` takes it, `how` is passed to `ran`."""
    given = [] if config is None else _listed(config)
    files = [Path(one) for one in given if isinstance(one, str | Path)]
    resolved = _resolved(given, files, root, name, tuple(overrides))
    return outside_event_loop(
        lambda: ran(resolved, name, root, files, start_from=start_from, without=tuple(without), **how)
    )


def stage_ran(
    address: str,
    name: str,
    config: Config | Sequence[Config] | None,
    root: str | Path,
    overrides: Sequence[str],
    *,
    force: bool,
    accept_failures: bool,
    quiet: bool,
) -> RunResults:
    """Run one stage instance; arguments as `run_stage` takes them."""
    given = [] if config is None else _listed(config)
    files = [Path(one) for one in given if isinstance(one, str | Path)]
    resolved = _resolved(given, files, root, name, tuple(overrides))

    def run_alone() -> RunResults:
        view = ProgressView(quiet=quiet)
        with running_companions(resolved.companions, view.tell):
            whole = with_run_defaults(resolved, root, name)
            wanted = instance(whole, Address.parse(address))
            run = open_run(root, name, whole, files)
            with _own_warnings(), ModelServers(run, wait_s=whole.flow.device_wait_s, notify=view.tell) as servers:
                _run_shown(ScheduledInstance(wanted, force, servers), run, view, accept_failures)
            return RunResults(run)

    return outside_event_loop(run_alone)


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, str | Path | Mapping | TreadleConfig) else list(given)


def _resolved(
    given: Sequence[Config], files: Sequence[Path], root: str | Path, name: str, overrides: Sequence[str]
) -> TreadleConfig:
    """Return the configuration: that of the files, with the keys of `given` tables and then `overrides` on top of it.

    Without files and tables, it is that of the existing run with `overrides`. A TreadleConfig must be given alone.
    """
    whole = [one for one in given if isinstance(one, TreadleConfig)]
    if whole and len(given) > 1:
        raise ConfigError("a TreadleConfig is a whole configuration; give it alone, or files and dicts of keys")
    if whole and not overrides:
        return whole[0]
    if len(files) == len(given):
        return configuration_of(root, name, files, overrides)
    data: dict[str, Any] = {}
    for one in given:
        if isinstance(one, TreadleConfig):
            data = one.model_dump(mode="json", exclude_unset=True)
        elif isinstance(one, Mapping):
            data = merge(data, one)
    return load_config(TreadleConfig, files, overrides, data=data)


def ran(
    config: TreadleConfig,
    name: str,
    root: str | Path,
    files: Sequence[Path],
    *,
    start_from: str | None = None,
    without: tuple[str, ...] = (),
    force: bool = False,
    accept_failures: bool = False,
    quiet: bool = False,
) -> RunResults:
    """Run a flow in this thread, skipping finished instances unless `force`; return the results. Raise TreadleError."""
    view = ProgressView(quiet=quiet)
    with running_companions(config.companions, view.tell):
        resolved = with_run_defaults(config, root, name)
        part = flow_part(flow_instances(resolved), root, name, start_from, without)
        run = open_run(root, name, resolved, files)
        for line in part.lines():
            view.tell(line)
        given: dict[str, Any] = {"force": force, "is_part": part.is_part, "notify": view.tell}
        with _own_warnings(), run_instances(part.instances, run, resolved, **given) as scheduled:
            for item in scheduled:
                _run_shown(item, run, view, accept_failures)
        return RunResults(run)


def _run_shown(item: ScheduledInstance, run: Run, view: ProgressView, accept_failures: bool) -> None:
    """Run an instance and show its progress."""
    # Standard output belongs to the caller, also while code of the user prints.
    with view.running(item.instance, run) as progress, redirect_stdout(sys.stderr):
        record = run_instance(
            item.instance,
            run,
            force=item.force,
            accept_failures=accept_failures,
            progress=progress,
            servers=item.servers,
            notify=view.tell,
        )
    view.made(record)


@contextmanager
def _own_warnings() -> Iterator[None]:
    """Restore the caller's logging at the end: stages add a handler that shows warnings."""
    logger = logging.getLogger("treadle")
    before = list(logger.handlers)
    handler = show_warnings()
    try:
        yield
    finally:
        if handler not in before:
            logger.removeHandler(handler)


def outside_event_loop(work: Callable[[], T]) -> T:
    """Run `work`, which starts event loops: in another thread if this thread already runs one, as in Jupyter.

    A KeyboardInterrupt in the caller ends `work` as Ctrl-C ends a command; after a second one, the caller no longer
    waits for it to end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            failure.append(error)

    thread = threading.Thread(target=call, name="treadle flow", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        _interrupt(thread)
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread the next time that it runs Python code.

    Treadle's event loops do so several times a second, even while they wait; they then cancel their tasks.
    """
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
