"""A strategy, a filter and a grader as users write them."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.api import Draft, DraftFilter, Profile, Scorer, StoredRollout, Strategy, Task


class OneAccount(Strategy):
    """Look at one account alone."""

    account: str = "A1"

    def instruction(self, profile: Profile, known: Sequence[str]) -> str:
        return f"Look at {self.account} in {profile.name}."


class Without(DraftFilter):
    """Drop tasks with a word."""

    word: str

    def kept(self, drafts: Sequence[Draft]) -> list[Draft]:
        return [draft for draft in drafts if self.word not in draft.query]


class Cancels(Scorer):
    """Whether an order was cancelled."""

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return float(any("cancelled" in segment.text for segment in rollout.segments))
