"""Provide a Prefect server to watch a command that does not need one: an existing server, or a temporary one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec

import httpx

from treadle.core.engines.cache import Notify
from treadle.core.errors import EngineError, TreadleError
from treadle.core.untrusted.sanitize import one_line
from treadle.tasks.doctor import prefect_answers
from treadle.tasks.prefect.prefect_home import PASSWORD, prefect_home
from treadle.tasks.prefect.server import HOST, running_server

USUAL_PORT = 4200
_SEND_S = 10.0
_API_URL = "PREFECT_API_URL"


@dataclass(frozen=True, slots=True)
class AvailableServer:
    """A server that answers.

    Attributes:
        is_temporary: True if it ends with this process; its database stays in Prefect's home.
        port: Port of a server that was started for this process; otherwise 0.
        env: Environment variables with which this process reaches it.
    """

    api_url: str
    is_temporary: bool
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = 0

    def url_after_exit(self, url: str) -> str:
        """Return how to open a flow run's page after the command has ended: its URL, or a command and the URL."""
        if not self.is_temporary:
            return url
        option = f" --port {self.port}" if self.port != USUAL_PORT else ""
        return f"treadle prefect up{option}, then {url}"


@contextmanager
def available_server(notify: Notify) -> Iterator[AvailableServer | None]:
    """Yield a server for flow runs of this process; yield None, after a message, if there is none.

    It is the server of PREFECT_API_URL; else the one that `treadle prefect up` runs from Prefect's home on this
    machine; else one that is started for the block, on the usual port or a free one, and ends with this process.
    Other processes are told that it is for the demo.
    """
    with ExitStack() as stack:
        server = None
        try:
            server = _choose(stack, notify)
            stack.enter_context(_environment(server.env))
            _try(server)
        except TreadleError as error:
            stack.close()
            server = None
            notify(f"continuing without Prefect, which is not needed: {one_line(str(error).splitlines()[0])}")
        try:
            yield server
        finally:
            if server is not None and server.is_temporary:
                notify("stopping the Prefect server")
                _flush_client()


def is_prefect_error(error: Exception) -> bool:
    """Return whether a flow run ended because of Prefect, its server or the connection, not the work.

    If the work itself failed or was interrupted before Prefect failed, raises that error, for example if an unreachable
    server prevented reporting it.
    """
    from prefect.exceptions import CancelledRun, ExternalSignal, PausedRun, PrefectException

    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, TreadleError | KeyboardInterrupt | SystemExit | ExternalSignal):
            raise one
    if any(isinstance(one, CancelledRun | PausedRun) for one in chain):
        return False  # the flow run was cancelled or paused on purpose
    return any(isinstance(one, httpx.HTTPError | PrefectException) for one in chain)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes and contexts, latest first."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _choose(stack: ExitStack, notify: Notify) -> AvailableServer:
    if find_spec("prefect") is None:
        raise EngineError("Prefect is not installed (pip install 'treadle[orchestration]')")
    if named := os.environ.get(_API_URL):
        if not prefect_answers(named):
            raise EngineError(f"the Prefect server of {_API_URL}={named} does not answer")
        return AvailableServer(named, is_temporary=False)
    home = prefect_home()
    if (there := home.running()) is not None:
        if there.doing:
            raise EngineError(f"process {there.pid} runs the Prefect server of {home.folder} for {there.doing} alone")
        if not prefect_answers(there.api_url):
            raise EngineError(f"the Prefect server of process {there.pid} does not answer yet")
        env = {_API_URL: there.api_url, "PREFECT_HOME": str(home.folder)}
        if (password := home.stored_password()) and not os.environ.get(PASSWORD):
            env[PASSWORD] = password
        return AvailableServer(there.api_url, is_temporary=False, env=env)
    notify("starting a Prefect server to watch this (usually 15 to 30 seconds)")
    started = stack.enter_context(running_server(home, _free_port(), None, notify, doing="treadle demo"))
    stack.enter_context(started.keep_alive())
    notify(f"its UI asks for a password: the text in {home.password_file}")
    return AvailableServer(started.api_url, is_temporary=True, env=started.env, port=started.port)


def _try(server: AvailableServer) -> None:
    """Connect to the server as flow runs will; on a temporary server, install the automations.

    Raises EngineError if that fails, for example because the server requires a password.
    """
    from treadle.tasks.prefect.settings import as_flow_run

    try:
        with as_flow_run():
            if server.is_temporary:
                from treadle.tasks.prefect.automations import install_automations

                install_automations()
            else:
                from prefect.client.orchestration import get_client

                with get_client(sync_client=True) as client:
                    client.read_flow_runs(limit=1)
    except Exception as error:  # whatever Prefect raises, the work does not depend on it
        raise EngineError(f"the Prefect server {server.api_url} cannot be used ({one_line(str(error))})") from error


def _flush_client() -> None:
    """Wait until Prefect's client has sent its queued log lines and events."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for queue in (APILogWorker, EventsWorker):
        queue.drain_all(timeout=_SEND_S)


def _free_port() -> int:
    """Return Prefect's usual port, so that URLs stay valid, or any free one if it is in use."""
    for port in (USUAL_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EngineError("no port is free for a Prefect server")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
