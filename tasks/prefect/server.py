"""A Prefect server and a worker as children of this process, which they do not outlive."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from treadle.core.engines.cache import Notify, cache_root
from treadle.core.engines.process import Child, start_child
from treadle.core.errors import ConfigError, EngineError
from treadle.core.harmless import one_line
from treadle.core.locks import FileLease, living_holder
from treadle.tasks.doctor import prefect_answers
from treadle.tasks.prefect.deployments import POOL
from treadle.tasks.prefect.settings import OF_FLOW_RUNS

HOST = "127.0.0.1"
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""Prefect's own variable for the database; an address with a password is better kept there than in an argument."""
_LOGS = ("server", "worker")
_POLL_S = 0.2
_SAID_S = 10.0
_START_S = 300.0
"""A server was up in 12 s on two idle cores, in 100 s on two with ten processes at work."""
_GRACE_S = 20.0
"""For the end of a worker: its flow runs tell the server what became of them."""
_SETTLED_S = 60.0
"""A child that has lived this long is started again when it ends."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The server of a home, as another process sees it.

    Attributes:
        pid: The process that runs it.
        doing: The command that it is there for and ends with; empty where that is `treadle prefect up`.
    """

    pid: int
    api_url: str
    doing: str


@dataclass(frozen=True, slots=True)
class PrefectHome:
    """Where a server keeps its database and logs; one server at a time works there."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Held by the process that runs the server."""
        return self.folder / "treadle.lock"

    @property
    def place(self) -> Path:
        """Says where the server can be reached."""
        return self.folder / "treadle.json"

    def running(self) -> RunningServer | None:
        """The server that is run from here, or None."""
        holder = living_holder(self.lock)
        if holder is None:
            return None
        try:
            url = str(orjson.loads(self.place.read_bytes())["api_url"])
        except (OSError, ValueError, KeyError):
            url = "(starting)"
        return RunningServer(holder.pid, url, one_line(holder.doing))


def prefect_home() -> PrefectHome:
    """`$PREFECT_HOME`, else a folder of ours, so that no other use of Prefect on this machine is touched."""
    given = os.environ.get("PREFECT_HOME", "")
    return PrefectHome(Path(given).expanduser().absolute() if given else _own_folder())


def _own_folder() -> Path:
    return cache_root() / "prefect"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A child that is started again when it ends."""

    name: str
    argv: list[str]
    child: Child
    began: float


class PrefectServer:
    """A server and workers under supervisors, for the length of `running_server`."""

    def __init__(self, home: PrefectHome, port: int, database: str | None, notify: Notify) -> None:
        self.home, self.port = home, port
        self.ui_url = f"http://{HOST}:{port}"
        self.api_url = f"{self.ui_url}/api"
        self._notify = notify
        self._server: _Kept | None = None
        self._workers: list[_Kept] = []
        self.env = {
            "PREFECT_HOME": str(home.folder),
            "PREFECT_API_URL": self.api_url,
            # Elsewhere it would be copied into the installation, which servers of other versions share.
            "PREFECT_UI_STATIC_DIRECTORY": str(home.folder / "ui"),
            # Its beat meets a locked database.
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_COLORS": "false",
            **OF_FLOW_RUNS,
        }
        self._database = database if database is not None else os.environ.get(DATABASE)
        # As it is now: what flow runs of this process set later keeps Prefect's log lines from terminals, and a server
        # that is started again writes its log with them.
        self._inherited = {key: value for key, value in os.environ.items() if key != DATABASE}

    def start(self) -> None:
        """Start the server and wait until it answers; raises EngineError with the end of its log where it does not."""
        self._server = self._run("server", ["server", "start", "--host", HOST, "--port", str(self.port)])
        child = self._server.child
        began = said = time.monotonic()
        while not prefect_answers(self.api_url):
            if child.poll() is not None:
                raise child.failure("ended before it answered")
            now = time.monotonic()
            if now > began + _START_S:
                raise child.failure(f"did not answer within {_START_S:g} s")
            if now > said + _SAID_S:
                said = now
                self._notify(f"  still starting after {now - began:.0f} s")
            time.sleep(_POLL_S)

    def start_worker(self, queues: Sequence[str] = (), limit: int | None = None) -> None:
        """Start a worker that takes from the queues named, or from all."""
        argv = ["worker", "start", "--pool", POOL, "--type", "process", "--name", f"treadle-{socket.gethostname()}"]
        argv += [part for name in queues for part in ("--work-queue", name)]
        argv += ["--limit", str(limit)] if limit is not None else []
        self._workers.append(self._run("worker", argv))

    def watch(self) -> None:
        """Keep the children alive; returns never. Raises EngineError where one ends soon after its start."""
        while True:
            self._look()
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def kept_alive(self) -> Iterator[None]:
        """The same from a thread, for the length of a block; where one ends soon after its start that is said, and it
        stays ended."""
        ended = threading.Event()

        def watch() -> None:
            try:
                while not ended.wait(_POLL_S):
                    self._look()
            except EngineError as error:
                self._notify(f"warning: {str(error).splitlines()[0]}")

        thread = threading.Thread(target=watch, name="watch of Prefect", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _look(self) -> None:
        if self._server is not None:
            self._server = self._kept(self._server)
        self._workers = [self._kept(worker) for worker in self._workers]

    def stop(self) -> None:
        """End all, the server last: flow runs still have to tell it how they ended."""
        for worker in self._workers:
            _end_flow_runs(worker.child)
            worker.child.stop()
        if self._server is not None:
            self._server.child.stop()

    def _kept(self, kept: _Kept) -> _Kept:
        if (code := kept.child.poll()) is None:
            return kept
        if time.monotonic() - kept.began < _SETTLED_S:
            raise kept.child.failure(f"ended with code {code}")
        self._notify(f"{kept.child.name} ended with code {code}; started again (log: {kept.child.log_path})")
        return self._run(kept.name, kept.argv)

    def _run(self, name: str, argv: list[str]) -> _Kept:
        env = self._inherited | self.env
        if name == "server" and self._database:
            env[DATABASE] = self._database
        try:
            child = start_child(
                [sys.executable, "-m", "prefect", *argv],
                name=f"Prefect {name}",
                log_path=self.home.folder / "logs" / f"{name}.log",
                env=env,
                grace_s=_GRACE_S,
            )
        except OSError as error:
            raise EngineError(f"Prefect {name} cannot be started ({error})") from error
        return _Kept(name, argv, child, time.monotonic())


@contextlib.contextmanager
def running_server(
    home: PrefectHome, port: int, database: str | None, notify: Notify, *, doing: str = ""
) -> Iterator[PrefectServer]:
    """A server for the length of a block; raises ConfigError for a port that is taken, RunError for a home in use.

    `doing` is the command that it is there for, where others cannot count on it.
    """
    with _writable(home):
        _make_folder(home)
    lease = FileLease(home.lock, f"the Prefect server of {home.folder}", doing=doing)
    with contextlib.ExitStack() as stack:
        stack.callback(lease.release)
        with _writable(home):
            _put_logs_aside(home)
        _check_port(port)
        server = PrefectServer(home, port, database, notify)
        with _writable(home):
            home.place.write_bytes(orjson.dumps({"api_url": server.api_url}))
        try:
            server.start()
            yield server
        finally:
            server.stop()


def database_url(given: str | None) -> str | None:
    """What `--database` means to Prefect, which wants a driver named; raises ConfigError for what is no PostgreSQL."""
    if given is None:
        return None
    scheme, separator, rest = given.partition("://")
    if not separator or scheme not in ("postgres", "postgresql", "postgresql+asyncpg"):
        raise ConfigError(
            "--database takes postgresql://USER:PASSWORD@HOST/NAME; without it, it is a file in Prefect's home"
        )
    return f"postgresql+asyncpg://{rest}"


def _end_flow_runs(worker: Child) -> None:
    """SIGTERM to the flow runs of a worker, which then become Crashed; it would wait for them without a word."""
    ends = time.monotonic() + _GRACE_S
    told: set[int] = set()
    while (alive := _children_of(worker.pid)) and time.monotonic() < ends:
        for pid in alive - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        told |= alive
        time.sleep(_POLL_S)


def _children_of(parent: int) -> set[int]:
    """Direct children of a process, those that have ended and were not waited for left out."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, ppid = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state not in "ZX":
                found.add(int(stat.parent.name))
    return found


@contextlib.contextmanager
def _writable(home: PrefectHome) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineError(f"Prefect's home {home.folder} cannot be written ({error}); set PREFECT_HOME") from error


def _make_folder(home: PrefectHome) -> None:
    """For its owner alone: the database holds parameters and log lines of all runs. One of the user's own stays."""
    home.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        home.folder.mkdir(mode=0o700)
    except FileExistsError:
        if home.folder == _own_folder():
            home.folder.chmod(0o700)


def _put_logs_aside(home: PrefectHome) -> None:
    (home.folder / "logs").mkdir(exist_ok=True)
    for name in _LOGS:
        log = home.folder / "logs" / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.old"))


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} cannot be used ({error.strerror}); choose another with --port. For a Prefect server of "
                f"your own that runs there: PREFECT_API_URL=http://{HOST}:{port}/api treadle prefect deploy"
            ) from None
