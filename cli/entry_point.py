"""Entry point of the console script `treadle`: handle signals before the slow import of the command line."""

from __future__ import annotations

import sys

from treadle.cli.interruption import INTERRUPTED, handle_signals


def main() -> None:
    """Run the command line and exit with its exit code."""
    handle_signals()
    try:
        from treadle.cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        sys.stderr.write("treadle: interrupted\n")
        sys.exit(INTERRUPTED)
