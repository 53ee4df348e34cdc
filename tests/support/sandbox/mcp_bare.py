"""A server of tools that misbehave or look around, over stdio, without the official package, which is slow to import.

It keeps to itself: it imports nothing of Treadle, so that it can run in the sandbox.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
calls = 0


def say(message: dict[str, Any]) -> None:
    """Send one message."""
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def write_endlessly(descriptor: int, data: bytes) -> None:
    """Write the same without end."""
    while True:
        os.write(descriptor, data)


def add(a: int = 0, b: int = 0) -> str:
    """Add two numbers."""
    return str(a + b)


def count() -> str:
    """Count the calls of this process."""
    global calls
    calls += 1
    nonce = os.urandom(4).hex()
    if log := os.environ.get("CALL_LOG"):
        with open(log, "a") as file:
            file.write(f"{nonce}\n")
    return f"process {os.getpid()} call {calls} nonce {nonce}"


def fail() -> str:
    """Fail."""
    raise ValueError("the printer is out of paper")


def hang() -> None:
    """Never answer, while other requests are answered."""


def stop() -> str:
    """Stop the whole process."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return ""


def die() -> str:
    """End the process, but only once if the environment names a file for that."""
    if died := os.environ.get("DIED"):
        if Path(died).exists():
            return "alive"
        Path(died).touch()
    print("no paper left", file=sys.stderr, flush=True)
    os._exit(3)


def kill() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def garbage() -> str:
    """Write to standard output what is no message."""
    os.write(1, b"debug: \x1b[31mhere\n")
    return ""


def flood_output() -> None:
    """Write messages without end."""
    write_endlessly(1, b'{"jsonrpc":"2.0","method":"notifications/x","params":{}}\n' * 100)


def flood_errors() -> None:
    """Write to standard error without end."""
    write_endlessly(2, b"x" * 65536)


def long_line() -> None:
    """Write one line without end."""
    write_endlessly(1, b"[" * 65536)


def close_output() -> None:
    """Close standard output and live on."""
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)


def hold_memory() -> str:
    """Hold much memory, and keep it."""
    held = [bytearray(os.urandom(1 << 20) * 8) for _ in range(256)]
    signal.pause()
    return str(len(held))


def spread() -> str:
    """Start processes and fill memory by files, as far as that is possible within reason."""
    children: list[int] = []
    said = "processes started"
    try:
        while len(children) < 400:
            if not (pid := os.fork()):
                signal.pause()
            children.append(pid)
    except OSError:
        said = "processes refused"
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    try:
        with open("/dev/shm/file", "wb") as file:
            for _ in range(80):
                file.write(bytes(1 << 20))
        said += ", /dev/shm written"
    except OSError:
        said += ", /dev/shm full"
    try:
        Path("/dev/file").touch()
        said += ", /dev written"
    except OSError:
        said += ", /dev refused"
    return said


def look() -> str:
    """Tell what can be seen."""
    with socket.socket() as probe:
        probe.settimeout(5)
        try:
            probe.connect(("127.0.0.1", int(os.environ.get("PORT", "9"))))
            network = "connected"
        except OSError as error:
            network = type(error).__name__
    seen = [path for path in ("/etc/passwd", "/home", os.environ.get("SEEN", "/root/.ssh")) if Path(path).exists()]
    names = ",".join(sorted(os.environ))
    try:
        Path("/usr/x").write_text("x")
        written = "written"
    except OSError:
        written = "read-only"
    return f"uid {os.getuid()} network {network} seen {seen} names {names} usr {written} pid {os.getpid()}"


TOOLS: dict[str, Callable[..., str | None]] = {
    tool.__name__: tool
    for tool in (
        add, count, fail, hang, stop, die, kill, garbage, flood_output, flood_errors, long_line, close_output,
        hold_memory, spread, look,
    )
}  # fmt: skip


def listed() -> list[dict[str, Any]]:
    """Return the tools as the protocol lists them."""
    schemas = {"add": NUMBERS}
    return [
        {"name": name, "description": tool.__doc__, "inputSchema": schemas.get(name, {"type": "object"})}
        for name, tool in TOOLS.items()
    ]


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a call; None if it is never answered."""
    try:
        text, failed = TOOLS[name](**arguments), False
    except ValueError as error:
        text, failed = str(error), True
    return None if text is None else {"content": [{"type": "text", "text": text}], "isError": failed}


def answered(method: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request; None if it is never answered.

    Raises:
        KeyError: there is no such request or tool.
    """
    if method == "initialize":
        server = {"name": "desk", "version": "1.2"}
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/call":
        return called(given["name"], given.get("arguments") or {})
    return {"ping": {}, "tools/list": {"tools": listed()}}[method]


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        try:
            result = answered(message["method"], message.get("params") or {})
        except KeyError as error:
            say({"id": message["id"], "error": {"code": -32601, "message": f"there is no {error}"}})
        else:
            if result is not None:
                say({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
