"""A credit rule whose advantages tell which turn they are of."""

from __future__ import annotations

from treadle.rl.credit.base import CreditGroup, CreditRule


class NumberedTurns(CreditRule):
    """Give each turn its number, from 1."""

    type: str = "support.credit.numbered_turns:NumberedTurns"
    """Type of the rule."""

    def advantages(self, group: CreditGroup) -> list[list[float]]:
        """See `CreditRule`."""
        return [[1.0 + turn for turn in range(item.num_turns)] for item in group.items]
