"""Define what a type of environment is: its settings, its traits, and how it is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from treadle.agent.contract import Episode, EpisodeOptions, Outcome, Resume, Task
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout

if TYPE_CHECKING:
    from treadle.agent.model_sessions import ModelSession
    from treadle.agent.role import RoleModel


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about a type of environment that stages need before they start.

    Attributes:
        resume: How an interrupted episode resumes.
        forks: Whether a new episode may continue a prefix of a rollout, as branching and editing operators do.
        forks_messages: Whether a new episode may continue a prefix of messages, for a policy that cannot continue text.
        has_answers: Whether tasks have gold answers that the rules of `scores` compare with; otherwise the environment
            rates rollouts.
        brings_tasks: Whether the type has tasks of its own.
        writes_messages: Whether episodes write messages between turns of the model, not only blocks inside one.
        reads_payload: Whether episodes read the payload of tasks.
        roles: Names of the models that episodes ask.
        scorer: Name of the scorer of tasks that name none, if the type does not score them itself.
        explores: Whether episodes need only the payload of a task to open its state, and show any text as the task: an
            agent can explore the state of a task without its text, and other tasks can be made of it.
        scores_references: Whether the type scores rollouts of tasks made by exploration, by the reference in their
            payload.
    """

    resume: Resume = "reenact"
    forks: bool = False
    forks_messages: bool = False
    has_answers: bool = False
    brings_tasks: bool = False
    writes_messages: bool = True
    reads_payload: bool = True
    roles: tuple[str, ...] = ()
    scorer: str | None = None
    explores: bool = False
    scores_references: bool = False


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that an environment may use while it is open.

    Attributes:
        summarizer: Model that summarizes search results; None without one.
        store: Function that returns a store of the run by its name; None outside a run.
        misses_are_empty: Whether a web search that a replay has no entry for finds nothing instead of failing.
        roles: Models that episodes may ask, by role.
    """

    summarizer: ModelSession | None = None
    store: Callable[[str], KeyedStore] | None = None
    misses_are_empty: bool = False
    roles: Mapping[str, RoleModel] = field(default_factory=dict)


class EnvironmentRuntime(Protocol):
    """Open environment: what all episodes of a process share."""

    def episode(self) -> Episode:
        """Return the episode of one rollout."""
        ...

    def facts(self) -> dict[str, str]:
        """Return facts for the record of the stage that only an open environment has, such as tools of a server."""
        ...

    async def group_options(self, task: Task, size: int, seed: int) -> Sequence[EpisodeOptions]:
        """Return the options of each rollout of a group, for example which of them get a hint."""
        ...


class EnvironmentType(Protocol):
    """A type of environment, as the registry holds it.

    Attributes:
        name: Value of `environment.type`.
        settings: Class of the settings.
    """

    name: str
    settings: type[EnvironmentSettings]

    def traits(self, settings: Any) -> Traits:
        """Return the facts that stages need."""
        ...

    def tasks(self, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the tasks of a split as rows, for types that have their own; see docs/behaviour/questions.md."""
        ...

    def open(self, settings: Any, resources: Resources) -> AbstractAsyncContextManager[EnvironmentRuntime]:
        """Open the environment for the duration of the block."""
        ...

    def replaying(self, settings: Any) -> EnvironmentRuntime | None:
        """Return a runtime that opens nothing and whose episodes can only replay; None if the type cannot replay."""
        ...

    async def score(self, settings: Any, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Return how good a finished rollout is, for types whose tasks have no gold answers; None if unknown."""
        ...

    def facts(self, settings: Any) -> dict[str, str]:
        """Return facts about this machine that the stage's record keeps."""
        ...

    def hidden_information(self, settings: Any, task: Task) -> str | None:
        """Return a sentence that states what the policy cannot see of a task, for critics; None if there is nothing.

        A type may lack this method.
        """
        ...


def equal_options(size: int, seed: int) -> list[EpisodeOptions]:
    """Return the options of a group whose rollouts are all treated alike."""
    return [EpisodeOptions(group_seed=seed)] * size
