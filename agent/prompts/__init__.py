"""Prompts of the agent and of those that help it, one file each, in our own words after arXiv 2601.06860.

A `.txt` file is a text as it is, a `.jinja` file a template. Values are put into templates as data: they are never
read as templates themselves, and a missing one is an error.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import jinja2


Format = Literal["multiple_choice", "assertion", "fill_in", "open_ended"]
"""What kind of answer a question asks for."""
FORMATS: tuple[Format, ...] = get_args(Format)

_CONTROL_TOKEN = re.compile(
    r"<(?=[|\uff5c]|/?s>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)|\[(?=/?(?:INST|SYS)\])", re.I
)


def as_data(text: str) -> str:
    """Text of others as it goes into a prompt: no spelling of a control token, no lone surrogate."""
    text = _CONTROL_TOKEN.sub(lambda match: "&lt;" if match[0] == "<" else "&#91;", text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@cache
def system_prompt(name: str) -> str:
    """Text of one prompt (`both`, `search`, `python`, `none`, `summarizer_system`), without its last newline."""
    return files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


@cache
def format_prompt(name: Format) -> str:
    """What the system prompt adds for questions of a format; empty where it adds nothing (`multiple_choice`)."""
    return "" if name == "multiple_choice" else system_prompt(f"format_{name}")


@cache
def template_source(name: str) -> str:
    """Text of one template, for digests."""
    return files(__name__).joinpath(f"{name}.jinja").read_text(encoding="utf-8")


def render_prompt(name: str, **values: object) -> str:
    """One template with its values; raises jinja2.UndefinedError where one is missing."""
    return _template(name).render(**values).rstrip("\n")


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template_source(name))
