"""Define what the stage `questions` knows of the environments of its sources."""

from __future__ import annotations

from typing import Any

from treadle.core.config import Operational, Section


class TaskEnvironment(Section):
    """What the stage `questions` knows of an environment."""

    kind: str = "question"
    """Type of the environment, part of a question's key."""
    needs_answers: bool = True
    """Whether every question needs a gold answer."""
    brings_tasks: bool = False
    """Whether the type has tasks of its own."""
    tasks_digest: str = ""
    """Digest of what its tasks depend on, except split and seed; empty if none are read."""
    settings: Operational[dict[str, Any] | None] = None
    """Settings of the environment; None if none of its tasks are read."""


QUESTION_ENVIRONMENT = TaskEnvironment()
"""An environment of the type `question`."""
