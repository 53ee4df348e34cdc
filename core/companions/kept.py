"""Keep companions running between runs: start them, record them, tell their state, stop them.

A record names the supervisor of a companion by process id, time of start and boot of the machine, so that no signal
reaches another process that has got the number since.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.companions.readiness import Readiness, answers
from treadle.core.companions.settings import CompanionSettings
from treadle.core.companions.start import check_startable, companions_folder, start_ready
from treadle.core.engines.cache import Notify, cache_lock
from treadle.core.engines.process import Child
from treadle.core.errors import ConfigError, EngineError, closest

FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_EXTRA_S = 10.0
"""Seconds that a supervisor may take to kill remaining processes after the grace period."""

State = Literal["ready", "not ready", "ended"]


class ProcessIdentity(BaseModel):
    """Identity of a process of this machine; a later process with the same number has another one."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started_ticks: int
    """Time of start since the boot, in ticks of the kernel's clock."""
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of a living process, or None if there is none with this number."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        if fields[0] in (b"Z", b"X"):
            return None
        return cls(pid=pid, started_ticks=int(fields[19]), boot=_BOOT_ID.read_text().strip())

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def end(self, number: int, wait_s: float) -> bool:
        """Send a signal and wait for the end; return whether the process has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # The descriptor refers to one process, so this check holds for the signal as well.
            if not self.is_alive():
                return True
            signal.pidfd_send_signal(descriptor, number)
            return bool(select.select([descriptor], [], [], wait_s)[0])
        except ProcessLookupError:
            return True
        finally:
            os.close(descriptor)


class KeptCompanion(BaseModel):
    """The record of a companion that is kept running."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    settings: CompanionSettings
    """Settings, with an absolute folder."""
    supervisor: ProcessIdentity
    program: ProcessIdentity | None
    """The program itself; None if it had ended when it was recorded."""
    log: str
    started_at: str
    """Time of the start in UTC, ISO 8601."""

    def is_alive(self) -> bool:
        """Return whether the companion runs."""
        return self.supervisor.is_alive()

    def state(self) -> State:
        """Return whether the companion runs, and if so, whether it is ready."""
        if not self.is_alive():
            return "ended"
        return "ready" if Readiness(self.settings, Path(self.log)).is_ready() else "not ready"

    def stop(self) -> None:
        """End the companion's processes; raise EngineError if one does not end."""
        grace_s = self.settings.stop_timeout_s + _EXTRA_S
        # The program ends with its supervisor, even if that is killed.
        if not self.supervisor.end(signal.SIGTERM, grace_s) and not self.supervisor.end(signal.SIGKILL, _EXTRA_S):
            raise EngineError(f"{self.settings.title} (process {self.supervisor.pid}) cannot be killed")
        if self.program is not None and self.program.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.program.pid, signal.SIGKILL)
            self.program.end(signal.SIGKILL, _EXTRA_S)


def kept_companions() -> tuple[list[KeptCompanion], list[EngineError]]:
    """Return all companions that are recorded on this machine, by name, and an error for each unreadable record."""
    found, unreadable = [], []
    for path in sorted(companions_folder().glob("*.json")):
        try:
            one = _read(path)
        except EngineError as error:
            unreadable.append(error)
        else:
            found += [one] if one is not None else []
    return found, unreadable


def kept_companion(name: str) -> KeptCompanion | None:
    """Return the recorded companion with this name, or None."""
    return _read(_path(name))


def named_companions(names: tuple[str, ...]) -> list[KeptCompanion]:
    """Return the recorded companions with these names, or all.

    Raises ConfigError for an unknown name, EngineError for an unreadable record among the selected ones.
    """
    found, unreadable = kept_companions()
    if not names and unreadable:
        raise unreadable[0]
    known = {one.settings.name: one for one in found}
    for name in names:
        if name not in known and kept_companion(name) is None:
            there = ", ".join(known) or "none"
            raise ConfigError(f"no companion {name!r} is kept running{closest(name, known)}; there are: {there}")
    return [known[name] for name in names or known]


def keep(settings: CompanionSettings, notify: Notify) -> KeptCompanion | None:
    """Start a companion that outlives this process; return its record.

    One that runs with the same settings and is ready is left alone. Returns None if another program is ready at its
    address. Raises EngineError if it runs with other settings or is not ready, and as `start_ready` does.
    """
    settings = absolute(settings)
    with _locked(settings.name, notify):
        earlier = kept_companion(settings.name)
        if earlier is not None and earlier.is_alive():
            check_usable(earlier, settings)
            notify(f"{settings.title} is running already")
            return earlier
        if settings.ready_url is not None and answers(settings.ready_url):
            if not settings.reuse:
                raise EngineError(f"a program already answers at {settings.ready_url}; stop it, or set reuse")
            notify(f"{settings.title} is running already at {settings.ready_url}; it was not started here")
            return None
        return _start(settings, notify)


def restart(kept: KeptCompanion, notify: Notify) -> KeptCompanion:
    """Stop a recorded companion and start it again with the same settings.

    If it cannot be started, its record stays, so that this can be repeated.
    """
    with _locked(kept.settings.name, notify):
        kept = kept_companion(kept.settings.name) or kept  # Another command may have restarted it meanwhile.
        check_startable(kept.settings)
        kept.stop()
        try:
            return _start(kept.settings, notify)
        except BaseException:
            _write(_path(kept.settings.name), kept)
            raise


def stop(kept: KeptCompanion, notify: Notify) -> None:
    """Stop a recorded companion and delete its record."""
    with _locked(kept.settings.name, notify):
        (kept_companion(kept.settings.name) or kept).stop()
        _path(kept.settings.name).unlink(missing_ok=True)


def absolute(settings: CompanionSettings) -> CompanionSettings:
    """Return the settings with an absolute folder."""
    return settings.model_copy(update={"folder": (settings.folder or Path()).absolute()})


def check_usable(kept: KeptCompanion, settings: CompanionSettings) -> None:
    """Raise EngineError if a companion that is kept running has other settings, or is not ready."""
    if not same_program(kept.settings, absolute(settings)):
        raise EngineError(
            f"{settings.title} is kept running with other settings; stop it: treadle companions stop {settings.name}"
        )
    if kept.state() != "ready":
        raise not_ready(kept)


def same_program(one: CompanionSettings, other: CompanionSettings) -> bool:
    """Return whether two entries describe the same program with the same environment and readiness."""
    keys = {"reuse", "start_timeout_s", "stop_timeout_s"}
    return one.model_dump(exclude=keys) == other.model_dump(exclude=keys)


def not_ready(kept: KeptCompanion) -> EngineError:
    """Return the error for a companion that runs and is not ready."""
    name = kept.settings.name
    return EngineError(
        f"{kept.settings.title} runs (process {kept.supervisor.pid}) but is not ready; restart it with: "
        f"treadle companions restart {name}; log: {kept.log}"
    )


def _start(settings: CompanionSettings, notify: Notify) -> KeptCompanion:
    """Start a companion and record it; a start that fails leaves no record."""
    path = _path(settings.name)
    made: list[KeptCompanion] = []

    def record(child: Child) -> None:
        supervisor = ProcessIdentity.of(child.supervisor_pid)
        if supervisor is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            given = {"settings": settings, "supervisor": supervisor, "program": ProcessIdentity.of(child.pid)}
            made.append(KeptCompanion.model_validate({**given, "log": str(child.log_path), "started_at": now}))
            _write(path, made[0])

    path.unlink(missing_ok=True)
    try:
        # Recorded before it is ready: if this process is killed while it waits, `stop` finds it.
        start_ready(settings, notify, kept=True, started=record)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    notify(f"{settings.title} is ready")
    return made[0]


@contextlib.contextmanager
def _locked(name: str, notify: Notify) -> Iterator[None]:
    with cache_lock(companions_folder() / name, notify):
        yield


def _path(name: str) -> Path:
    return companions_folder() / f"{name}.json"


def _write(path: Path, kept: KeptCompanion) -> None:
    part = path.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_bytes(orjson.dumps(kept.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    part.replace(path)


def _read(path: Path) -> KeptCompanion | None:
    """Return a record; None if there is none, as another command may just have stopped its companion."""
    try:
        kept = KeptCompanion.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        kept = None
    if kept is None or kept.format != FORMAT:
        raise EngineError(f"the record {path} cannot be read; delete it, and end its program if that still runs")
    return kept
