"""Find judges by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.agent.judges.base import Judge
from treadle.core.registry import Registry

JUDGES = Registry(
    base=Judge,
    key="scores.judges",
    group="treadle.judges",
    example="my_judges.py:Polite",
    shipped={
        "correctness": "treadle.agent.judges.correctness:Correctness",
        "rubric": "treadle.agent.judges.rubric:Rubric",
    },
    methods={"messages": "messages(view)", "read": "read(text)"},
)
"""Judges of answers and trajectories."""

AnyJudge = TypeAliasType("AnyJudge", Annotated[SerializeAsAny[Judge], WrapValidator(JUDGES.validate), JUDGES])
"""Settings of a judge of any type."""
