"""Define options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from treadle.core.untrusted.sanitize import sanitize

OBJECT_ROOT = "s3://"
_DOMAINS = ("math", "qa", "choice")

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


class RootType(click.ParamType[Any]):
    """A folder, or `s3://bucket/prefix`."""

    name = "root"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | Path:
        """Return a path, or the URL without a trailing slash; report a usage error for other URLs."""
        text = str(value)
        if text.startswith(OBJECT_ROOT) and text.strip("/") != OBJECT_ROOT.strip("/"):
            return text.rstrip("/")
        if "://" in text:
            self.fail(f"{text!r} is not a root; give a folder or s3://bucket/prefix", param, ctx)
        click.Path(file_okay=False).convert(text, param, ctx)
        return Path(text)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder in help texts."""
        return "FOLDER|s3://BUCKET/PREFIX"


root_option = click.option(
    "--root",
    type=RootType(),
    default="outputs",
    show_default=True,
    envvar="TREADLE_ROOT",
    is_eager=True,  # The default of --run depends on it.
    help="Where runs and artifacts are kept.",
)


def run_or_last(root: str | Path) -> str:
    """Return the last changed run of a root and print its name to standard error; report a usage error without runs."""
    from treadle.tasks.inspection.overview import last_run

    if (found := last_run(root)) is None:
        raise click.UsageError(f"there are no runs in {root}; start one with `treadle run`, or name another --root")
    say(f"run {found} (the last one; -r NAME selects another)")
    return found


def _named_or_last(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return value if value is not None or context.resilient_parsing else run_or_last(context.params["root"])


run_option = click.option(
    "-r", "--run", "run_id", metavar="NAME", callback=_named_or_last, help="Name of the run. [default: the last one]"
)
"""Option that names the run, for commands that only read it; such a command also needs `root_option`."""
named_run_option = click.option("-r", "--run", "run_id", metavar="NAME", required=True, help="Name of the run.")
"""Option that names the run, for commands that change it."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, as in rollouts.samples_per_question=8.",
)


def domain_option(help_text: str) -> Decorator:
    """Return `--domain NAME=DOMAIN`, which can be repeated and is passed to the command as `domains`."""
    return click.option(
        "--domain", "domains", multiple=True, metavar="NAME=DOMAIN", callback=_parse_domains, help=help_text
    )


def _parse_domains(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, separator, domain = value.rpartition("=")
        if not separator or not name or domain not in _DOMAINS:
            raise click.BadParameter(f"{value!r} is not of the form NAME=DOMAIN with {', '.join(_DOMAINS)}")
        found[name] = domain
    return found


def combine_options(*options: Decorator) -> Decorator:
    """Combine options and arguments into one decorator; the help lists them in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def options_object(kind: type, *options: Decorator) -> Decorator:
    """Combine options and pass their values to the command as one object, its first argument.

    `kind`: a dataclass with a field per option, named like its parameter.
    """
    names = [field.name for field in dataclasses.fields(kind)]

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            return command(kind(**{name: given.pop(name) for name in names}), **given)

        return combine_options(*options)(called)

    return add


def say(line: str) -> None:
    """Print a line on standard error. It is sanitized, because it may contain text of servers and their logs."""
    click.echo(sanitize(line), err=True)
