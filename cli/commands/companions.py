"""Define `treadle companions`: programs that stay up between runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treadle.cli.options import json_option, say, set_option
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json

if TYPE_CHECKING:
    from treadle.core.companions.kept import KeptCompanion

_names = click.argument("names", nargs=-1, metavar="[NAME]...")


@click.group(
    short_help="Keep the companions of runs up between them.",
    epilog="Example:  treadle companions start run.toml   |   treadle companions status",
)
def companions() -> None:
    """Keep the [[companions]] of a configuration running between runs.

    A run starts those that are not running, and stops them when it ends; those that are kept here it uses and leaves.
    """


@companions.command(
    short_help="Start those of a configuration.", epilog="Example:  treadle companions start run.toml --only appworld"
)
@click.argument("configs", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--only", multiple=True, metavar="NAME", help="Start only this one; repeatable.")
@set_option
def start(configs: tuple[Path, ...], only: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Start the companions of a configuration in their order, and return when all are ready."""
    from treadle.core.companions.kept import keep
    from treadle.core.config import load_config
    from treadle.core.errors import ConfigError, closest
    from treadle.tasks.config import TreadleConfig
    from treadle.tasks.planning.secret_checks import check_secrets

    config = load_config(TreadleConfig, configs, overrides)
    check_secrets(config, [one.model_dump(mode="json") for one in config.companions])
    wanted = {one.name: one for one in config.companions}
    for name in only:
        if name not in wanted:
            raise ConfigError(f"the configuration has no companion {name!r}{closest(name, wanted)}")
    if not wanted:
        raise ConfigError("the configuration has no [[companions]]")
    for name, settings in wanted.items():
        if not only or name in only:
            keep(settings, say)


@companions.command(short_help="Show what is kept running.", epilog="Example:  treadle companions status --json")
@json_option
def status(as_json: bool) -> None:
    """Show the companions that are kept running on this machine."""
    from treadle.core.companions.kept import kept_companions

    kept, unreadable = kept_companions()
    found = [(one, one.state()) for one in kept]
    if as_json:
        click.echo(sanitized_json([_facts(one, state) for one, state in found]))
    elif not found and not unreadable:
        click.echo("none; start those of a configuration with: treadle companions start CONFIG.toml")
    for one, state in [] if as_json else found:
        where = f", {one_line(one.settings.ready_url)}" if one.settings.ready_url else ""
        click.echo(
            f"{one.settings.name:<16} {state}, process {one.supervisor.pid}, since {one.started_at}{where}; "
            f"log: {sanitize(one.log)}"
        )
    if unreadable:
        raise unreadable[0]


@companions.command(short_help="Stop what is kept running.", epilog="Example:  treadle companions stop appworld")
@_names
def stop(names: tuple[str, ...]) -> None:
    """Stop the companions with these names, or all that are kept running; the last one started first."""
    from treadle.core.companions.kept import named_companions
    from treadle.core.companions.kept import stop as stop_kept

    for one in sorted(named_companions(names), key=lambda kept: kept.started_at, reverse=True):
        stop_kept(one, say)
        say(f"{one.settings.title} is stopped")


@companions.command(short_help="Stop and start them again.", epilog="Example:  treadle companions restart appworld")
@_names
def restart(names: tuple[str, ...]) -> None:
    """Stop the companions with these names, or all, and start them again with the settings that they had."""
    from treadle.core.companions.kept import named_companions
    from treadle.core.companions.kept import restart as restart_kept

    for one in sorted(named_companions(names), key=lambda kept: kept.started_at):
        restart_kept(one, say)


def _facts(one: KeptCompanion, state: str) -> dict[str, object]:
    return {
        "name": one.settings.name,
        "state": state,
        "pid": one.supervisor.pid,
        "started_at": one.started_at,
        "ready_url": one.settings.ready_url,
        "command": list(one.settings.command),
        "folder": str(one.settings.folder),
        "log": one.log,
    }
