"""Add the file formats that distributions register to `treadle import` and `treadle export`.

An entry point of the group `treadle.formats` names an object, usually a module, that has a click command as
`import_command`, `export_command` or both; see docs/guides/own.md. The entry point's name is that of the command.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import click

from treadle.core.errors import ConfigError
from treadle.core.untrusted.sanitize import one_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "treadle.formats"
HEADING = "Formats of other projects"


class FormatGroup(click.Group):
    """Command group that also has the commands of registered formats; its own commands take precedence."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; a format that cannot be loaded gives one that fails with the reason."""
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        points = _entry_points().get(cmd_name)
        return self._format(points) if points else None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the group's own commands, then of the registered formats."""
        return [*super().list_commands(ctx), *self._formats()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the group's own commands, then those of the registered formats under a heading."""
        click.Group(commands=self.commands).format_commands(ctx, formatter)
        if rows := [(name, command.get_short_help_str(90)) for name, command in self._formats().items()]:
            with formatter.section(HEADING):
                formatter.write_dl(rows)

    def _formats(self) -> dict[str, click.Command]:
        points = {name: each for name, each in sorted(_entry_points().items()) if name not in self.commands}
        return {name: command for name, each in points.items() if (command := self._format(each)) is not None}

    def _format(self, points: list[EntryPoint]) -> click.Command | None:
        """Return the command of a format; None if it has none for this group."""
        try:
            return _load(points, f"{self.name}_command")
        except ConfigError as error:
            return _failing_command(points[0].name, error)


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return the registrations by name; usually one per name."""
    from importlib.metadata import entry_points

    found = defaultdict(list)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found[point.name].append(point)
    return found


def _load(points: list[EntryPoint], attribute: str) -> click.Command | None:
    """Return the command of a format that `attribute` names: `import_command` or `export_command`.

    Returns None if the format has only the other command. Raises ConfigError if it has no valid command, cannot be
    loaded or is registered twice.
    """
    registered_by = " and ".join(sorted(_distribution(point) for point in points))
    what = f"the format {points[0].name!r} (registered by {registered_by})"
    if len(points) > 1:
        raise ConfigError(f"{what} is registered twice; uninstall one of these packages")
    try:
        loaded = points[0].load()
    # Any error, also an exit, that a module of another project raises on import.
    except (Exception, SystemExit) as error:
        why = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(f"{what} cannot be loaded: {why}; update or uninstall that package") from error
    found = [getattr(loaded, name, None) for name in ("import_command", "export_command")]
    if not all(one is None or isinstance(one, click.Command) for one in found) or found == [None, None]:
        raise ConfigError(f"{what} has no click command as import_command or export_command; update that package")
    command: click.Command | None = getattr(loaded, attribute, None)
    return command


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _failing_command(name: str, error: ConfigError) -> click.Command:
    """Return a command that fails with an error, whatever its arguments."""

    def fail() -> None:
        raise error

    options = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return click.Command(name, callback=fail, context_settings=options, short_help=f"Cannot be used: {error}")
