"""Run the environment service in uvicorn, from loading its environments to the end of its last instance."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping

import uvicorn

from treadle.core import steady_loop
from treadle.core.errors import EngineError
from treadle.environments.service.app import HEALTH_PATH, make_app
from treadle.environments.service.service import EnvironmentService
from treadle.environments.service.settings import EnvironmentServiceSettings
from treadle.environments.settings import EnvironmentSettings
from treadle.retriever.service.listening import KEEP_ALIVE_S, listen, url_of

_CLOSE_CONNECTIONS_S = 5


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def serve(
    settings: EnvironmentServiceSettings,
    environments: Mapping[str, EnvironmentSettings],
    on_ready: Callable[[str], None],
) -> None:
    """Serve environments by name until SIGTERM or SIGINT; then release all instances.

    `on_ready` is called with the URL once requests are answered. Raises ConfigError and EngineError if an environment
    cannot be loaded or the address is not available.
    """
    # Each connection and each process of an instance needs descriptors.
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Time during which the process is suspended counts towards no limit.
    steady_loop.run(_until_signal(EnvironmentService(settings, environments), on_ready))


async def _until_signal(service: EnvironmentService, on_ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run_until(service, stop, on_ready)


async def run_until(service: EnvironmentService, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    """Serve until `stop` is set; see `serve`."""
    app = make_app(service)
    with listen(service.settings) as listener:
        try:
            opening = asyncio.create_task(service.open())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                return
            opening.result()
            await _run(service, app, listener, stop, on_ready)
        finally:
            await service.close()


async def _run(
    service: EnvironmentService,
    app: object,
    listener: socket.socket,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
) -> None:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    url = url_of(listener)
    ready = asyncio.create_task(_answers(listener))
    await asyncio.wait([serving, stopping, ready], return_when=asyncio.FIRST_COMPLETED)
    if ready.done() and not ready.cancelled():
        ready.result()
        on_ready(url)
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if not serving.done():
        # Requests that come from now on are refused; those in flight are answered while instances end.
        await service.drain()
        server.should_exit = True
    await serving


async def _answers(listener: socket.socket) -> None:
    """Send a health check and wait for its answer. Raises EngineError if the status is not 200."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET {HEALTH_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        status = (await reader.readline()).split(b" ")[1:2]
        if status != [b"200"]:
            raise EngineError(f"the service does not answer its own request: {status}")
    finally:
        writer.close()
