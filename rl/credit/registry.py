"""Find types of credit rules by name: shipped ones, entry points, classes in a file or a module."""

from __future__ import annotations

from typing import Annotated

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.registry import Registry
from treadle.rl.credit.base import CreditRule
from treadle.rl.credit.outcome import OutcomeCredit

CREDITS = Registry(
    base=CreditRule,
    key="rl.credit",
    group="treadle.credits",
    example="my_credit.py:PerTurn",
    shipped={
        "attribution": "treadle.rl.credit.attribution:AttributionCredit",
        "outcome": "treadle.rl.credit.outcome:OutcomeCredit",
    },
    methods={"advantages": "advantages(group)"},
)
"""Types of credit rules."""

AnyCredit = TypeAliasType("AnyCredit", Annotated[SerializeAsAny[CreditRule], WrapValidator(CREDITS.validate), CREDITS])
"""Settings of a credit rule of any type."""


def is_default(rule: CreditRule) -> bool:
    """Return whether the rule is `outcome`, whose advantages engines compute themselves."""
    return type(rule) is OutcomeCredit
