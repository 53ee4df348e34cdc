"""Check the order of the blocks of a whole text against its dialect."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from treadle.agent.dialects.base import RESULT, TEXT, Segment
from treadle.datagen.texts.blocks import Block
from treadle.environments.planning.dialect import DialectName, PlanningDialect, planning_dialect, tools_of
from treadle.environments.planning.violations import violations


@functools.cache
def _dialect(name: DialectName) -> PlanningDialect:
    return planning_dialect(name, tools_of(name))


def text_violations(text: str, blocks: Sequence[Block], tag: str, dialect: DialectName) -> list[str]:
    """Return the codes of `treadle.environments.planning.violations` that apply to the blocks of a text."""
    return block_violations(text, blocks, tag, _dialect(dialect))


def block_violations(text: str, blocks: Sequence[Block], tag: str, table: PlanningDialect) -> list[str]:
    """Return the codes of the violations in a text that was split into blocks, in the dialect `table`.

    `tag` is the tag around observations.
    """
    segments = []
    for block in blocks:
        kind = RESULT if block.name == tag else block.name if block.name in table.by_name else TEXT
        segments.append(Segment(kind, text[block.start : block.end], 0, 0))
    return violations(segments, table)
