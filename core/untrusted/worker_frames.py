"""Frames between a worker process and its parent: a kind, a length, and that many bytes.

This module is what a worker uses; its parent uses `core/untrusted/worker_process.py`.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import Any, BinaryIO

HEAD = struct.Struct(">cI")
REQUEST, REPLY, DIED = b"Q", b"J", b"D"
"""Kinds of frames, by content: a part of a request; a reply in JSON; the exit code of the child that the worker forked
for a request and that ended without a reply."""
MAX_REPLY_BYTES = 1 << 20


def open_frames() -> BinaryIO:
    """Return a stream for frames in place of standard output, so that output of a library cannot get between them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipes
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return frames


def send_frame(frames: BinaryIO, kind: bytes, content: Any) -> None:
    """Send a frame; `content` is anything with a buffer."""
    frames.write(HEAD.pack(kind, memoryview(content).nbytes))
    frames.write(content)
    frames.flush()


def next_request() -> bytes | None:
    """Return the content of the next frame on standard input; None after the last one."""
    head = sys.stdin.buffer.read(HEAD.size)
    return sys.stdin.buffer.read(HEAD.unpack(head)[1]) if len(head) == HEAD.size else None
