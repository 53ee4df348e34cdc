"""Load the prompts of the judges from this folder."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


@cache
def prompt_text(file: str) -> str:
    """Return a prompt without its final newline."""
    return files(__package__).joinpath(file).read_text(encoding="utf-8").removesuffix("\n")


@cache
def prompt_template(file: str) -> jinja2.Template:
    """Return a prompt as a template."""
    import jinja2

    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(prompt_text(file))
