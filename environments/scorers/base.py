"""Define what a scorer is: settings, facts that stages need before a run, and the method that scores a rollout."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import ClassVar, Literal

from treadle.agent.contract import Task
from treadle.core.answers.score import Score
from treadle.core.registry import Entry
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

STATUS = "status"
"""Name of the scorer in the score of a rollout that is wrong because of how it ended."""

Stores = Callable[[str], KeyedStore]
"""Function that returns a store of the run by its name."""
Reads = Literal["answer", "outcome", "rollout"]
Scale = Literal["binary", "graded", "reward"]


class Scorer(Entry):
    """Rule that rates finished rollouts.

    Attributes:
        PARTS: Names of the parts that a `Score` may have, with one line on each: `title: explanation`.
        READS: What the score depends on. `answer`: the answer; a rollout that did not end with one is wrong.
            `outcome`: what the tools reported about the episode. `rollout`: the whole rollout.
        SCALE: Values of a score: 0 or 1, from 0 to 1, or any number, which reports call a reward.
        NEEDS_ANSWERS: Whether tasks must have gold answers.
        PAYLOAD: Fields of the payload that tasks must have.
        JUDGED_AS: If `scores.judges.domains` lists this name, judges are asked about answers that the scorer does not
            accept; empty if they never are.
        TIME_LIMIT_S: Most seconds for one rollout; after that it has no verdict. None: no limit.
    """

    PARTS: ClassVar[Mapping[str, str]] = {}
    READS: ClassVar[Reads] = "rollout"
    SCALE: ClassVar[Scale] = "graded"
    NEEDS_ANSWERS: ClassVar[bool] = False
    PAYLOAD: ClassVar[tuple[str, ...]] = ()
    JUDGED_AS: ClassVar[str] = ""
    TIME_LIMIT_S: ClassVar[float | None] = 60.0

    @classmethod
    def missing(cls, environment: EnvironmentSettings) -> str | None:
        """Return what a run's environment lacks for this scorer, such as a tool; None if nothing."""
        return None

    @classmethod
    def check_payload(cls, payload: Mapping[str, object]) -> None:
        """Raise `treadle.agent.tools.workspace.files.BadTask` for a payload that cannot be used."""

    @property
    def unpublished(self) -> str:
        """Setting that makes scores incomparable with published figures, for presets to refuse; empty for none."""
        return ""

    def label(self, name: str) -> str:
        """Return the scorer's name for rows and reports; `name` is its name in the configuration."""
        return name

    def check(self, where: str) -> None:
        """Raise ConfigError for settings that cannot score; `where` is the key that names the scorer."""

    def use_stores(self, store: Stores) -> None:
        """Use stores that outlive the process, such as those of a run; called before `open` if such stores exist."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Open what scoring needs, for the duration of the block; keep it in private attributes."""
        yield

    async def score(self, task: Task, rollout: StoredRollout) -> float | Score | None:
        """Return how good a rollout is; above 0.5 it is right, unless a `Score` says otherwise. None: no verdict.

        An error, or a value out of the scale, leaves this rollout without a verdict.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method score(task, rollout)")


def no_verdict(error: str, scorer: str, parts: Mapping[str, float] | None = None) -> Score:
    """Return the score of a rollout without a verdict."""
    return Score(None, None, scorer, error, parts or {})
