"""Load the prompts of the agent and of its helper models, one file each, worded after arXiv 2601.06860.

A `.txt` file is plain text, a `.jinja` file is a template. Values are inserted into templates as data: they are never
parsed as templates, and a missing one is an error.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import jinja2


Format = Literal["multiple_choice", "assertion", "fill_in", "open_ended"]
"""Kind of answer that a question asks for."""
FORMATS: tuple[Format, ...] = get_args(Format)


@cache
def system_prompt(name: str) -> str:
    """Return one prompt, such as `both`, `functions` or `summarizer_system`, without its final newline."""
    return files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


@cache
def format_prompt(name: Format) -> str:
    """Return the paragraph of the system prompt for questions of a format; empty for `multiple_choice`."""
    return "" if name == "multiple_choice" else system_prompt(f"format_{name}")


@cache
def template_source(name: str) -> str:
    """Return the source of one template, for digests."""
    return files(__name__).joinpath(f"{name}.jinja").read_text(encoding="utf-8")


def render_prompt(name: str, **values: object) -> str:
    """Render one template. Raises jinja2.UndefinedError if a value is missing."""
    return _template(name).render(**values).rstrip("\n")


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template_source(name))
