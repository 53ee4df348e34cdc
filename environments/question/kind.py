"""Define the type `question`: questions with gold answers, answered with tools."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from treadle.agent.contract import Outcome, Task
from treadle.agent.dialects.tags import TagDialect
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.environments.types import Resources, Traits

if TYPE_CHECKING:
    from treadle.environments.question.runtime import QuestionRuntime


class QuestionType:
    """Type of environments in which questions with gold answers are answered with tools."""

    name = "question"
    settings = QuestionSettings

    def traits(self, settings: QuestionSettings) -> Traits:
        """See `EnvironmentType`."""
        # Tools may read the payload of a task, for example the files of a workspace.
        is_tags = isinstance(settings.turn_dialect, TagDialect)
        return Traits(
            resume="replay",
            forks=is_tags,
            forks_messages=not any(tool.keeps_state and tool.max_calls != 0 for tool in settings.tools.values()),
            has_answers=True,
            writes_messages=not is_tags,
            reads_payload=bool(settings.tools),
            explores=True,
        )

    async def tasks(self, settings: QuestionSettings, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield nothing; questions come from files."""
        rows: tuple[Mapping[str, Any], ...] = ()
        for row in rows:
            yield row

    @contextlib.asynccontextmanager
    async def open(self, settings: QuestionSettings, resources: Resources) -> AsyncIterator[QuestionRuntime]:
        """Open the enabled tools. Raises ToolError."""
        from treadle.environments.question.runtime import open_tools

        async with open_tools(settings, resources) as runtime:
            yield runtime

    def replaying(self, settings: QuestionSettings) -> QuestionRuntime:
        """Return a runtime without tools: a recorded call is only counted."""
        from treadle.environments.question.runtime import QuestionRuntime

        return QuestionRuntime(settings, {})

    async def score(self, settings: QuestionSettings, task: Task, rollout: StoredRollout) -> Outcome | None:
        """Return None: the rules and judges of `scores` compare with the gold answers."""
        return None

    def facts(self, settings: QuestionSettings) -> dict[str, str]:
        """Return isolation, Python and package versions of the sandbox; empty without the Python tool."""
        from treadle.environments.question.tools import sandbox_facts

        return sandbox_facts(settings)
