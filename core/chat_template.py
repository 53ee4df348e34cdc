"""Compile chat templates, in the Jinja environment that they are written for.

A template comes with its model and is untrusted code. It runs in a sandbox, without access to files or the clock.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from treadle.core.errors import ConfigError

if TYPE_CHECKING:
    import jinja2
    import jinja2.sandbox

TEMPLATE_DATE = dt.date(2024, 7, 26)
"""Date given to templates that print today's date: the clock must not change a prompt when a run is resumed."""


def compile_template(folder: Path, source: str) -> jinja2.Template:
    """Compile a template; raise ConfigError naming the model's folder if it is not valid."""
    import jinja2

    try:
        template = _environment().from_string(source)
        # Each rendering copies the globals, and copying jinja2's chain of mappings takes longer than most templates.
        template.globals = dict(template.globals)
        return template
    except jinja2.TemplateError as error:
        raise ConfigError(f"chat template of {folder} is not valid: {error}") from error


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the Jinja environment that chat templates are written for: block trimming and a few helper functions."""
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser
    import jinja2.sandbox

    class GenerationBlock(jinja2.ext.Extension):
        """The `{% generation %}` block, which marks text for training masks; its body is printed unchanged."""

        tags = {"generation"}

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = TEMPLATE_DATE.strftime
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Return JSON as templates expect it: without HTML escapes, and with non-ASCII characters kept."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
