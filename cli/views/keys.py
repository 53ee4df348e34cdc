"""Print keys of a configuration with their help: those that environments, tools and scorers add."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treadle.agent.tools.settings import ToolSettings
from treadle.core.config import Section
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json
from treadle.environments.mixture import table_of
from treadle.environments.scorers.base import Scorer
from treadle.environments.settings import DEFAULT_TYPE, EnvironmentSettings


def print_environment(name: str, environment: EnvironmentSettings) -> None:
    """Print the configuration keys that the type of an environment adds, then the schemas and keys of its tools."""
    table = table_of(name)
    is_shipped = environment.type == DEFAULT_TYPE  # its keys are in the reference
    if not is_shipped and (keys := own_keys(environment, EnvironmentSettings)):
        print_keys(f"keys of {environment.type} (under {table}):", keys)
    for tool_name, tool in environment.tools.items():
        schemas = tool.known_schemas(tool_name)
        lines = [f"{schema.name}: {sanitized_json(schema.as_openai()['function'])}" for schema in schemas]
        lines += own_keys(tool, ToolSettings)
        print_keys(f"tools and keys of {tool.type} (under {table}.tools.{tool_name}):", lines)


def print_scorer(name: str, scorer: Scorer) -> None:
    """Print what an entry of `scorers` has: the names of the parts of its scores, and its configuration keys."""
    lines = [f"part {part}: {line}" for part, line in scorer.PARTS.items()]
    print_keys(f"parts and keys of {scorer.type} (under scorers.{name}):", lines + own_keys(scorer, Scorer))


def own_keys(section: Section, base: type[Section]) -> list[str]:
    """Return the keys that a section adds to those of `base`, with values and help."""
    shared = base.model_fields
    helps = {name: text for name, text in type(section).descriptions().items() if name not in shared}
    values = section.model_dump(mode="json", include=set(helps))
    return [
        f"{name} = {sanitized_json(values[name])}" + (f"  {one_line(text)}" if text else "")
        for name, text in helps.items()
    ]


def print_keys(title: str, lines: Sequence[str]) -> None:
    """Print lines below a title."""
    click.echo(f"\n{title}")
    for line in lines:
        click.echo(f"  {sanitize(line)}")
