"""A process like `warm_treadle`, in a mount namespace of its own, whose commands meet disks that fail.

Reads one JSON object a line and answers with one number. With `argv`: a command for `warm_treadle`, and in `fault` what
goes wrong below the folder `disk`; the steps that it takes there go to the file `steps`. With `program`: another
program, such as `mount`. Run as a script, best by `unshare --mount`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from faults import Disk, Fault, watched
from preloaded import preload
from warm_treadle import command

_SEGMENT_BYTES = 6000


def run(request: dict[str, Any]) -> None:
    """Become a command whose disk fails; does not return."""
    from treadle.core.journal.journal import Journal

    # Several segments, forced to disk when they are closed: always the same steps.
    Journal.__init__.__kwdefaults__.update(segment_bytes=_SEGMENT_BYTES, sync_interval_s=3600.0)  # type: ignore[union-attr]
    if "steps" not in request:
        command(request)
    fault = Fault(**request["fault"]) if request["fault"] else None
    log = os.open(request["steps"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with watched(Disk(Path(request["disk"]), fault, log)):
        command(request)


def serve() -> None:
    """Serve every line until the input ends."""
    from treadle.core.runs.provenance import git_state

    preload()
    git_state()  # Kept by every command: the test is not about git.
    os.write(1, b"0\n")
    for line in sys.stdin:
        request = json.loads(line)
        if "program" in request:
            code = subprocess.run(request["program"], stdout=subprocess.DEVNULL).returncode
        else:
            child = os.fork()
            if not child:
                run(request)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, f"{code}\n".encode())


if __name__ == "__main__":
    serve()
