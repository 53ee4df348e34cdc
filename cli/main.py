"""Define the `treadle` command line: parse arguments, call the same functions as the Prefect flows, print results.

Treadle's errors are printed as one line on standard error, with their exit code; the traceback is in the attempt's log.
Heavy modules are imported inside the commands, so that `treadle --help` starts fast.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from itertools import chain
from typing import Any, NoReturn

import click

from treadle.cli.command_list import COMMANDS
from treadle.cli.interruption import INTERRUPTED, exit_on_next_signal, handle_signals, ignore_closed_terminal
from treadle.cli.warnings import show_warnings
from treadle.core.errors import Interrupted, TreadleError
from treadle.core.os_errors import explained
from treadle.core.untrusted.sanitize import one_line

TRACEBACK = "TREADLE_TRACEBACK"
"""Environment variable that shows the traceback of unexpected errors."""


class _Commands(click.Group):
    """Command group that lists commands in groups, in order of use, and ends with a message on Ctrl-C."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                # Names have one width, so that the texts of all groups begin in the same column.
                formatter.write_dl(
                    [(f"{one.name:<{width}}", one.get_short_help_str(formatter.width - width - 6)) for one in commands]
                )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # A signal may interrupt a library's task; asyncio would log that at exit, after our last line.
            logging.getLogger("asyncio").disabled = True
            raise Interrupted("interrupted; finished work is kept, run the same command again to continue") from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start here:  treadle demo   |   treadle run configs/laptop.toml --run first   |   treadle doctor",
)
@click.version_option(package_name="treadle", prog_name="treadle")
def cli() -> None:
    """Treadle: a data flywheel for tool-using LLM agents.

    A run turns questions into scored rollouts, stage by stage. Every stage is resumable: after any interruption, run
    the same command again and it continues.
    """


for command in chain.from_iterable(COMMANDS.values()):
    cli.add_command(command)


def main() -> None:
    """Run the command line and exit with its exit code."""
    handle_signals()
    ignore_closed_terminal()
    show_warnings()
    try:
        code = cli.main(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(_explain(error), error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except TreadleError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    # Last resort: unexpected errors also end with one line.
    except Exception as error:  # noqa: BLE001
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        if isinstance(error, OSError) and (text := explained(error)):
            _drop_output()
            _fail(text, 1)
        what = f"{type(error).__name__}: {error}"
        _fail(f"unexpected {what}; this is a bug in Treadle: {TRACEBACK}=1 shows the traceback", 1)
    finally:
        exit_on_next_signal()


def _drop_output() -> None:
    """Discard what could not be written to standard output, so that the interpreter does not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int) -> NoReturn:
    click.echo(f"treadle: {one_line(message)}", err=True)
    sys.exit(exit_code)


def _explain(error: click.ClickException) -> str:
    """Return a usage error in one sentence that names the command's --help."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context is not None else message
