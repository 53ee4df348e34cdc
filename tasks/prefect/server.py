"""Run a Prefect server and workers as child processes that end with this process."""

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

from treadle.core.engines.cache import Notify
from treadle.core.engines.process import Child, start_child
from treadle.core.errors import ConfigError, EngineError
from treadle.core.store.locks import FileLease
from treadle.tasks.doctor import prefect_answers
from treadle.tasks.prefect.deployments import POOL
from treadle.tasks.prefect.prefect_home import PASSWORD, SERVER_PASSWORD, PrefectHome, own_folder
from treadle.tasks.prefect.settings import FLOW_RUN_ENV

HOST = "127.0.0.1"
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
"""Prefect's variable for the database; prefer it to an argument for an address with a password."""
_LOGS = ("server", "worker")
_POLL_S = 0.2
_START_S = 300.0
"""Time limit for the server's start, which takes 12 s on two idle cores, 100 s on two with ten busy processes."""
_GRACE_S = 20.0
"""Time that a worker gets to end, in which its flow runs report their final state to the server."""
_MIN_UPTIME_S = 60.0
"""A child that has run this long is restarted when it ends; one that ends sooner is not."""


@dataclass(frozen=True, slots=True)
class _RestartedChild:
    """A child process that is restarted when it ends."""

    name: str
    argv: list[str]
    child: Child
    began: float


class PrefectServer:
    """A server and workers as supervised children, for the duration of `running_server`."""

    def __init__(self, home: PrefectHome, port: int, database: str | None, notify: Notify) -> None:
        self.home, self.port = home, port
        self.ui_url = f"http://{HOST}:{port}"
        self.api_url = f"{self.ui_url}/api"
        self._notify = notify
        self._server: _RestartedChild | None = None
        self._workers: list[_RestartedChild] = []
        self.env = {
            "PREFECT_HOME": str(home.folder),
            "PREFECT_API_URL": self.api_url,
            # By default it is copied into the installation, which servers of other versions share.
            "PREFECT_UI_STATIC_DIRECTORY": str(home.folder / "ui"),
            # Its periodic task runs into a locked database.
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_COLORS": "false",
            PASSWORD: home.password(),
            **FLOW_RUN_ENV,
        }
        self._database = database if database is not None else os.environ.get(DATABASE)
        # Captured now: flow runs of this process later set variables that keep Prefect's log lines from terminals, and
        # a restarted server would inherit them.
        self._inherited = {key: value for key, value in os.environ.items() if key != DATABASE}

    def start(self) -> None:
        """Start the server and wait until it answers; raise EngineError with the end of its log if it does not."""
        self._server = self._run("server", ["treadle.tasks.prefect.server_process", str(self.port)])
        self._server.child.wait_until(lambda left_s: prefect_answers(self.api_url), _START_S, self._notify)

    def start_worker(self, queues: Sequence[str] = (), limit: int | None = None) -> None:
        """Start a worker that polls the named queues, or all."""
        argv = ["treadle.tasks.prefect.worker", "--pool", POOL, "--name", f"treadle-{socket.gethostname()}"]
        argv += [part for name in queues for part in ("--queue", name)]
        argv += ["--limit", str(limit)] if limit is not None else []
        self._workers.append(self._run("worker", argv))

    def watch(self) -> None:
        """Keep the children running; never returns. Raises EngineError if one ends soon after its start."""
        while True:
            self._check_children()
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Keep the children running from a thread, for the duration of a block.

        If one ends soon after its start, notify and stop restarting children.
        """
        ended = threading.Event()

        def watch() -> None:
            try:
                while not ended.wait(_POLL_S):
                    self._check_children()
            except EngineError as error:
                self._notify(f"warning: {str(error).splitlines()[0]}")

        thread = threading.Thread(target=watch, name="watch of Prefect", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _check_children(self) -> None:
        if self._server is not None:
            self._server = self._restart_if_ended(self._server)
        self._workers = [self._restart_if_ended(worker) for worker in self._workers]

    def stop(self) -> None:
        """Stop the workers, then the server, so that flow runs can still report how they ended."""
        for worker in self._workers:
            _end_flow_runs(worker.child)
            worker.child.stop()
        if self._server is not None:
            self._server.child.stop()

    def _restart_if_ended(self, kept: _RestartedChild) -> _RestartedChild:
        if (code := kept.child.poll()) is None:
            return kept
        if time.monotonic() - kept.began < _MIN_UPTIME_S:
            raise kept.child.failure(f"ended with code {code}")
        self._notify(f"{kept.child.name} ended with code {code}; started again (log: {kept.child.log_path})")
        return self._run(kept.name, kept.argv)

    def _run(self, name: str, argv: list[str]) -> _RestartedChild:
        env = self._inherited | self.env
        if name == "server":
            env |= self._server_env()
        try:
            child = start_child(
                [sys.executable, "-m", *argv],
                name=f"Prefect {name}",
                log_path=self.home.folder / "logs" / f"{name}.log",
                env=env,
                grace_s=_GRACE_S,
            )
        except OSError as error:
            raise EngineError(f"Prefect {name} cannot be started ({error})") from error
        return _RestartedChild(name, argv, child, time.monotonic())

    def _server_env(self) -> dict[str, str]:
        """Return the environment variables that only the server gets."""
        origins = f"{self.ui_url},http://localhost:{self.port}"
        variables = {SERVER_PASSWORD: self.env[PASSWORD], "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origins}
        return variables | ({DATABASE: self._database} if self._database else {})


@contextlib.contextmanager
def running_server(
    home: PrefectHome, port: int, database: str | None, notify: Notify, *, doing: str = ""
) -> Iterator[PrefectServer]:
    """Run a server for the duration of a block; raise ConfigError for a port in use, RunError for a home in use.

    `doing` is the command that the server is started for, if other commands must not rely on it.
    """
    with _writable(home):
        _make_folder(home)
    lease = FileLease(home.lock, f"the Prefect server of {home.folder}", doing=doing)
    with contextlib.ExitStack() as stack:
        stack.callback(lease.release)
        with _writable(home):
            _rotate_logs(home)
        _check_port(port)
        with _writable(home):
            server = PrefectServer(home, port, database, notify)
            home.place.write_bytes(orjson.dumps({"api_url": server.api_url}))
        try:
            server.start()
            yield server
        finally:
            server.stop()


def database_url(given: str | None) -> str | None:
    """Return the database URL with the driver that Prefect needs; raise ConfigError for anything but PostgreSQL."""
    if given is None:
        return None
    scheme, separator, rest = given.partition("://")
    if not separator or scheme not in ("postgres", "postgresql", "postgresql+asyncpg"):
        raise ConfigError(
            "--database takes postgresql://USER:PASSWORD@HOST/NAME; without this option, it is a file in Prefect's home"
        )
    return f"postgresql+asyncpg://{rest}"


def _end_flow_runs(worker: Child) -> None:
    """Send SIGTERM to the flow runs of a worker, which then become Crashed; the worker would wait for them silently."""
    ends = time.monotonic() + _GRACE_S
    signalled: set[int] = set()
    while (alive := _children_of(worker.pid)) and time.monotonic() < ends:
        for pid in alive - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        signalled |= alive
        time.sleep(_POLL_S)


def _children_of(parent: int) -> set[int]:
    """Return the direct children of a process, without zombies."""
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
    """Create the folder, accessible only by its owner: the database has parameters and log lines of all runs.

    The permissions of an existing folder are changed only if it is our own.
    """
    home.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        home.folder.mkdir(mode=0o700)
    except FileExistsError:
        if home.folder == own_folder():
            home.folder.chmod(0o700)


def _rotate_logs(home: PrefectHome) -> None:
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
