"""A stand-in for `docker` and `podman`: containers are folders and their commands processes of this machine.

It exists to test how an engine is called, not to isolate anything. Run as a program with the engine's arguments; its
state is next to the program: `calls.jsonl` with all calls, `containers/<id>` with labels and the pids of commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HOME = Path(sys.argv[0]).parent


def main(words: list[str]) -> int:
    with (HOME / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    containers = HOME / "containers"
    containers.mkdir(exist_ok=True)
    command = words[0]
    if command == "info":
        return 1 if (HOME / "down").exists() else 0
    if command == "image":
        print("sha256:of-the-image")
        return 1 if words[-1] == "missing" else 0
    if command == "run":
        name = f"c{len(list(containers.iterdir()))}"
        labels = [words[place + 1] for place, word in enumerate(words) if word == "--label"]
        (containers / name).write_text("\n".join(labels))
        print(name)
    elif command == "ps":
        wanted = [word.removeprefix("label=") for word in words if word.startswith("label=")]
        for path in sorted(containers.iterdir()):
            if all(any(line.startswith(one) for line in path.read_text().splitlines()) for one in wanted):
                print(path.name)
    elif command == "inspect":
        lines = dict(line.split("=", 1) for line in (containers / words[-1]).read_text().splitlines())
        print("true" if "State" in words[2] else lines["treadle.workspace.owner"])
    elif command == "rm":
        for name in words[1:]:
            (containers / name).unlink(missing_ok=True) if not name.startswith("-") else None
    elif command == "exec":
        return execute(words[1:])
    return 0


def execute(words: list[str]) -> int:
    while words[0].startswith("--"):
        words = words[2:] if words[0] == "--workdir" else words[1:]
    container, *argv = words
    running = HOME / f"{container}.pid"
    if argv == ["sh", "-c", "kill -9 -1"]:
        if running.exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(running.read_text()), signal.SIGKILL)
            running.unlink()
        return 0
    process = subprocess.Popen(argv, start_new_session=True, cwd=HOME)
    running.write_text(str(process.pid))
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
