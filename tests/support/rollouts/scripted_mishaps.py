"""Failures in the processes of scripted engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def take_step(script: dict[str, Any], step: int) -> None:
    """Record a step in the file `trace` of the script, and take `step_s` seconds for it."""
    if "trace" in script:
        with open(script["trace"], "a", buffering=1) as trace:
            trace.write(f"{step}\n")
    time.sleep(script.get("step_s", 0.0))


def act(what: str, tell: Callable[..., None]) -> int | None:
    """Fail as scripted; return the exit code, or None to continue."""
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "hang":
        # A grandchild in a session of its own: it has to be found, too.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        while True:
            print("still here", flush=True)
            time.sleep(0.02)
    elif what == "no memory":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\x1b[31m", flush=True)
    elif what == "stop early":
        tell("end", step=0, epoch=0.0, seconds=0.0)
        return 0
    elif what == "stop after 2":
        tell("end", step=2, epoch=0.3, seconds=2.0)
        return 0
    else:
        tell("error", kind=what, message=f"Error: {what} it is")
    return 1
