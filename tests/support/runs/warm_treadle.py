"""A process that has imported Treadle once and forks for every command, which saves each of them seconds.

Reads one JSON object a line (`argv`, `folder`, `env`, `file_bytes`), answers with the exit code. Run as a script.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback

from preloaded import preload


def command(request: dict[str, object]) -> None:
    """Become the command in a forked child; does not return."""
    from treadle.cli.main import main

    os.chdir(str(request["folder"]))
    for number, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    sys.argv = ["treadle", *request["argv"]]  # type: ignore[misc]
    if limit := request["file_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))  # type: ignore[arg-type]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does: shown, then the end
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def serve() -> None:
    """Fork for every line until the input ends."""
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            command(request)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, f"{code}\n".encode())


if __name__ == "__main__":
    serve()
