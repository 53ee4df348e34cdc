"""Scripted responses of hostile servers."""

from __future__ import annotations

import socket
from collections.abc import Callable

from support.servers.web_servers import Hostile

KIB = 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FAR = 256 * KIB
"""More than is ever read at once: what comes after so much is met by another part of aiohttp than what comes before."""
Script = Callable[[Hostile, socket.socket], None]


def saying(*parts: bytes, then: bytes = b"") -> Script:
    """Say these parts, then the last one without end; without a last one hang up."""

    def script(server: Hostile, line: socket.socket) -> None:
        for part in parts:
            server.say(line, part)
        while then:
            server.say(line, then)

    return script


def falling_silent(*parts: bytes) -> Script:
    """Say these parts, and nothing more."""

    def script(server: Hostile, line: socket.socket) -> None:
        for part in parts:
            server.say(line, part)
        server.silent.set()
        server.ended.wait()

    return script


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def drip(server: Hostile, line: socket.socket) -> None:
    """Send a byte now and then, for ever, without a long pause."""
    server.say(line, HEAD + b"\r\n")
    server.silent.set()
    while not server.ended.wait(0.01):
        server.say(line, b"x")
