"""A TCP connection in between, which can be cut: what is sent then is accepted, and never arrives."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class TcpLink:
    """Forwards connections from a port of its own to another; ends with its block."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TcpLink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()

    def cut(self) -> None:
        """Swallow all bytes from now on, of connections that are open and of new ones. They stay open."""
        self._cut.set()

    def mend(self) -> None:
        """Forward new connections again; interrupted ones stay dead, as after a change of routes."""
        self._cut.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to_port))
                dead = threading.Event()
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, sink, dead), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, dead: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._cut.is_set():
                    dead.set()
                if not dead.is_set():
                    sink.sendall(data)
            if not dead.is_set():
                sink.shutdown(socket.SHUT_WR)
