"""Ports of loopback that are free."""

from __future__ import annotations

import random
import socket

_BELOW = 32_768
"""First port that the kernel gives to connections by itself."""


def free_port() -> int:
    """Return a port on which nothing listens now, and which the kernel gives to no connection until it is bound."""
    # Not the global generator: tests seed it, each process with the same number.
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(20_000, _BELOW)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
