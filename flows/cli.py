"""The `treadle` command line: reads arguments, calls what the Prefect flows call too, prints.

Errors of ours leave as one line on standard error with their exit code; the traceback is in the attempt's log.
Heavy modules are imported inside the commands, so that `treadle --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

import click

from treadle.core.errors import TreadleError
from treadle.core.harmless import one_line
from treadle.flows.cli_diff import diff
from treadle.flows.cli_engines import doctor, env, serve, tutor
from treadle.flows.cli_eval import evaluate
from treadle.flows.cli_export import export
from treadle.flows.cli_gc import gc
from treadle.flows.cli_import import import_
from treadle.flows.cli_inspect import lineage, show, status, verify
from treadle.flows.cli_prefect import prefect
from treadle.flows.cli_report import report
from treadle.flows.cli_retriever import retriever
from treadle.flows.cli_run import demo, run, stage
from treadle.flows.cli_view import view
from treadle.flows.cli_web import web
from treadle.flows.cli_work import work
from treadle.flows.warnings import show_warnings

INTERRUPTED = 130
TRACEBACK = "TREADLE_TRACEBACK"
"""Environment variable that makes errors that nobody foresaw show where they came from."""


class Interrupted(TreadleError):
    """Ctrl-C or SIGTERM ended the command."""

    exit_code = INTERRUPTED


class _Commands(click.Group):
    """Lists commands in the order of their use; ends on Ctrl-C with a sentence, where click ends with an empty line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # A signal may hit a task of a library's, of which asyncio would tell at the very end, below our last line.
            logging.getLogger("asyncio").disabled = True
            raise Interrupted("interrupted; everything finished so far is kept, the same command goes on") from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start here:  treadle demo   |   treadle run configs/laptop.toml --run first   |   treadle doctor",
)
@click.version_option(package_name="treadle", prog_name="treadle")
def cli() -> None:
    """Treadle: a data flywheel for tool-using LLM agents.

    A run turns questions into scored rollouts, stage by stage. Every stage is resumable: run the same command again
    after any interruption and it goes on where it was.
    """


for command in (demo, run, evaluate, stage, work, status, show, view, lineage, diff, verify, report, export, import_):
    cli.add_command(command)
for command in (gc, prefect, web, doctor, env, serve, tutor, retriever):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    _install_signal_handlers()
    show_warnings()
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    # The last resort: whatever nobody foresaw ends with one line too.
    except Exception as error:  # noqa: BLE001
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        _fail(f"unexpected {what}; this is a bug of Treadle: {TRACEBACK}=1 shows where it happened", 1)


def _fail(message: str, exit_code: int) -> NoReturn:
    click.echo(f"treadle: {one_line(message)}", err=True)
    sys.exit(exit_code)


def _explain(error: click.ClickException) -> str:
    """A usage error in one sentence, with the command whose help says more."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context is not None else message


def _install_signal_handlers() -> None:
    """SIGTERM ends a command as Ctrl-C does; a second signal ends it at once (supervised children follow)."""

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, leave)
        signal.signal(signal.SIGTERM, leave)
        raise KeyboardInterrupt

    def leave(signum: int, frame: FrameType | None) -> None:
        # The bar of a progress display may have hidden the cursor.
        begin = b"\x1b[?25h\n" if os.isatty(2) else b""
        os.write(2, begin + b"treadle: stopped at once; everything finished so far is kept\n")
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
