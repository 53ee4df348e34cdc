"""The dialects in which agents call tools."""

from __future__ import annotations

from treadle.agent.dialects.free import FreeDialect
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tag_table import Tag
from treadle.agent.dialects.tags import TagDialect

__all__ = [
    "FreeDialect",
    "FunctionsDialect",
    "Tag",
    "TagDialect",
]
