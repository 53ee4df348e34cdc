"""System prompts of the agent, one text file each, in our own words after arXiv 2601.06860."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def system_prompt(name: str) -> str:
    """Text of one prompt (`both`, `search`, `python` or `none`), without the file's last newline."""
    return files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
