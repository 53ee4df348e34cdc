"""Load the instructions of planning agents, one file each, in our own words after arXiv 2508.13167 and 2510.25320."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def instructions(name: str) -> str:
    """Return one prompt, such as `gap`, without its final newline."""
    return files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
