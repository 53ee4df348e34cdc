"""Load the instructions of agent and person, one file each, in our own words after arXiv 2503.15478."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def instructions(name: str) -> str:
    """Return one prompt by its name, such as `agent`, without its final newline."""
    return files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
