"""Find judges by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import SerializeAsAny, WrapValidator

from treadle.agent.judges.base import Judge
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry

_NAME = re.compile(r"[A-Za-z]\w{0,39}")


def _judge(found: Any, place: str) -> type[Judge]:
    """Return the class; raise ConfigError if it is no judge."""
    if not (isinstance(found, type) and issubclass(found, Judge)):
        raise ConfigError(f"scores.judges.type: {place} is not derived from treadle.api.Judge")
    for method, call in (("messages", "messages(view)"), ("read", "read(text)")):
        if getattr(found, method) is getattr(Judge, method):
            raise ConfigError(f"scores.judges.type: {place} has no method {call}")
    if odd := [name for name in found.PARTS if not _NAME.fullmatch(name)]:
        raise ConfigError(f"scores.judges.type: {place} declares part {odd[0]!r}; use letters, digits and _")
    return found


JUDGES = Registry(
    base=Judge,
    key="scores.judges",
    group="treadle.judges",
    example="my_judges.py:Polite",
    shipped={
        "correctness": "treadle.agent.judges.correctness:Correctness",
        "rubric": "treadle.agent.judges.rubric:Rubric",
    },
    settings_of=_judge,
)
"""Judges of answers and trajectories."""

AnyJudge = Annotated[SerializeAsAny[Judge], WrapValidator(JUDGES.validate), JUDGES]
"""Settings of a judge of any type."""
