"""Scorers of guided rollouts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pydantic import PrivateAttr

from treadle.agent.contract import Task
from treadle.environments.scorers.base import Scorer, Stores
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.guided.scoring import scored
from treadle.rl.guided.settings import GuidedSettings


class Keeper(Scorer):
    """A scorer that pays for its scores."""

    _stores: list[Stores] = PrivateAttr(default_factory=list)

    def use_stores(self, store: Stores) -> None:
        self._stores.append(store)

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return 1.0


def test_scorers_keep_what_they_pay_for_in_stores_of_the_run() -> None:
    def store(name: str) -> Any:
        raise AssertionError(name)

    keeper = Keeper(type="keeper")
    settings = SimpleNamespace(scorers={"keeper": keeper}, named_environments=dict)
    assert list(scored(cast(GuidedSettings, settings), [], iter(()), store)) == []
    assert keeper._stores == [store]
