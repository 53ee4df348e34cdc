"""Send JSON over a stream socket between the service and the process of an instance: a length, then the content."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import orjson

MAX_FRAME_BYTES = 64 * 2**20
_HEAD = struct.Struct("!I")


class FrameEnded(Exception):
    """The other side closed the socket, or sent an invalid frame."""


def pack(content: Any) -> bytes:
    """Return content as a frame. Raises ValueError if it is too long, and TypeError if JSON cannot represent it."""
    data = orjson.dumps(content)
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(data)} bytes are more than a message may have ({MAX_FRAME_BYTES})")
    return _HEAD.pack(len(data)) + data


async def receive(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> Any:
    """Return the content of the next frame of a non-blocking socket. Raises FrameEnded and ConnectionError."""
    (length,) = _HEAD.unpack(await _exactly(loop, channel, _HEAD.size))
    if length > MAX_FRAME_BYTES:
        raise FrameEnded
    try:
        return orjson.loads(await _exactly(loop, channel, length))
    except orjson.JSONDecodeError:
        raise FrameEnded from None


async def _exactly(loop: asyncio.AbstractEventLoop, channel: socket.socket, length: int) -> bytes:
    data = await loop.sock_recv(channel, length)
    if len(data) == length and length:
        return data
    parts = bytearray(data)
    while data and len(parts) < length:
        data = await loop.sock_recv(channel, length - len(parts))
        parts += data
    if len(parts) < length:
        raise FrameEnded
    return bytes(parts)
