"""Entry point of the console script `treadle`: handle signals before the slow import of the command line."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

from treadle.cli.interruption import INTERRUPTED, handle_signals

_START_ALLOCATIONS = 500_000
"""Number of objects before the first collection of cycles: more than the imports of any command make."""


def main() -> None:
    """Run the command line and exit with its exit code."""
    handle_signals()
    _delay_collection()
    try:
        from treadle.cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        sys.stderr.write("treadle: interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        # Else the interpreter searches all modules for cycles before it exits, for a fifth of a second.
        gc.freeze()


def _delay_collection() -> None:
    """Delay garbage collection while modules are imported: they make few cycles but would be searched repeatedly.

    That search takes a tenth of the time of short commands. After the first collection, Python's own thresholds apply.
    """
    usual = gc.get_threshold()

    def restore(phase: str, info: Mapping[str, Any]) -> None:
        if phase == "stop":
            gc.callbacks.remove(restore)
            gc.set_threshold(*usual)

    gc.callbacks.append(restore)
    gc.set_threshold(_START_ALLOCATIONS)
