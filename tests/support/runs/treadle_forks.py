"""A fast substitute for the installed `treadle`: a process that has imported it forks for each command.

Run as a script with a socket's path, it is that process. A shell runs the client, `CLIENT`, in place of the program:
same arguments, folder, environment, streams and exit code; its interrupts reach the command. A command that serves
until Ctrl-C is requested once, over HTTP at the address that it prints, and stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

CLIENT = r"""#!{python} -ISE
import array, json, os, signal, socket, sys, urllib.error, urllib.request

argv, serves = sys.argv[1:], any(word in sys.argv[1:3] for word in ("view", "serve"))
out = 1
if serves:
    reading, out = os.pipe()
    argv += [] if "--port" in argv else ["--port", "0"]
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
message = json.dumps([argv, os.getcwd(), dict(os.environ)]).encode()
fds = array.array("i", [0, out, out if serves else 2])
connection.sendmsg([len(message).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
connection.sendall(message)
pid = int.from_bytes(connection.recv(4), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
if serves:
    os.close(out)
    asked = False
    for line in open(reading):
        print(line, end="", flush=True)
        place = line.find("http://")
        if place >= 0 and not asked:
            asked = True
            try:
                urllib.request.urlopen(line[place:].split()[0].rstrip("/,;") + "/", timeout=60).read()
            except urllib.error.HTTPError:
                pass  # An answer, too: services need not have anything there.
            os.kill(pid, signal.SIGINT)
    if not asked:
        print("no address was printed", file=sys.stderr)
code = int.from_bytes(connection.recv(4), "big", signed=True)
if serves:
    sys.exit(code != 130 or not asked)
sys.exit(code if code >= 0 else 128 - code)
"""


def install(folder: Path, socket_path: Path) -> subprocess.Popen[bytes]:
    """Start the forking process, which ends with ours by the end of its input; write its client, `folder/treadle`."""
    client = folder / "treadle"
    client.write_text(CLIENT.format(python=sys.executable, path=str(socket_path)))
    client.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, str(socket_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return server


def command(argv: list[str], folder: str, environment: dict[str, str], fds: list[int]) -> None:
    """Become the command; does not return."""
    code = 1
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["treadle", *argv]
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Workers of pytest-xdist ignore it.
        from treadle.cli.main import main

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does: shown, then the end
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def keep(connection: socket.socket) -> None:
    """Fork one command and report its end; if the client has ended, end the command."""
    length, fds, _, _ = socket.recv_fds(connection, 4, 3)
    message = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
    argv, folder, environment = json.loads(message)
    child = os.fork()
    if not child:
        connection.close()
        command(argv, folder, environment, fds)
    for fd in fds:
        os.close(fd)
    connection.sendall(child.to_bytes(4, "big"))
    ended = os.pidfd_open(child)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(code.to_bytes(4, "big", signed=True))


def serve(path: str) -> None:
    """Fork a keeper for every client until the input ends."""
    from preloaded import preload

    preload()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            keep(connection)
            os._exit(0)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    serve(sys.argv[1])
