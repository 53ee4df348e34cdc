"""Start the process of a companion and wait until it is ready."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from treadle.core.companions.readiness import Readiness
from treadle.core.companions.settings import CompanionSettings
from treadle.core.engines.cache import Notify, cache_root
from treadle.core.engines.process import Child, log_tail, start_child
from treadle.core.errors import ConfigError, EngineError
from treadle.core.untrusted.secrets import is_secret_name

_TAIL_LINES = 50


def companions_folder() -> Path:
    """Return the folder of the logs of companions, and of the records of those that are kept."""
    return cache_root() / "companions"


def start_ready(
    settings: CompanionSettings,
    notify: Notify,
    *,
    kept: bool = False,
    check: Callable[[], None] = lambda: None,
    started: Callable[[Child], None] = lambda child: None,
) -> Child:
    """Start a companion and return it once it is ready.

    Raises EngineError if it cannot be started, ends, or is not ready in time; then all its processes have ended, and
    the end of its log was shown. `kept`: it outlives this process. `check` is called repeatedly while waiting;
    `started` once, before waiting.
    """
    folder, environment = check_startable(settings)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    log = companions_folder() / f"{settings.name}-{stamp}-{os.getpid()}.log"
    child = start_child(
        settings.command,
        name=settings.title,
        log_path=log,
        env=environment,
        cwd=folder,
        grace_s=settings.stop_timeout_s,
    )
    try:
        started(child)
        if kept:
            # Only after `started` has recorded it: a process without a record would never be stopped.
            child.keep()
        notify(f"starting {settings.title}; log: {log}")
        readiness = Readiness(settings, log)

        def is_ready(left_s: float) -> bool:
            check()
            return readiness.is_ready()

        def failure(what: str) -> EngineError:
            why = f": {readiness.why()}" if readiness.why() and child.poll() is None else ""
            return failed(child, f"{what}{why}", notify)

        child.wait_until(is_ready, settings.start_timeout_s, notify, " (companions.start_timeout_s)", failure)
    except BaseException:
        child.stop()
        raise
    return child


def check_startable(settings: CompanionSettings) -> tuple[Path, dict[str, str]]:
    """Return folder and environment of a companion; raise ConfigError if the folder or a variable is missing."""
    folder = (settings.folder or Path()).absolute()
    if not folder.is_dir():
        raise ConfigError(f"{settings.title}: its folder {folder} does not exist")
    return folder, environment_of(settings, os.environ)


def environment_of(settings: CompanionSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a companion; raise ConfigError for a variable that should be passed but is not set."""
    given = {name: value for name, value in environ.items() if not is_secret_name(name)}
    for entry in settings.env:
        name, separator, value = entry.partition("=")
        if not separator and name not in environ:
            raise ConfigError(f"{settings.title} needs the environment variable {name}, which is not set")
        given[name] = value if separator else environ[name]
    # Otherwise Python programs buffer their log, and `ready_text` appears in it late.
    return {"PYTHONUNBUFFERED": "1", **given}


def failed(child: Child, what: str, notify: Notify) -> EngineError:
    """Show the end of the log of a companion that failed, and return the error: what happened, and where the log is."""
    for line in log_tail(child.log_path, _TAIL_LINES).splitlines():
        notify(f"  {line}")
    return EngineError(f"{child.name} {what}; log: {child.log_path}")
