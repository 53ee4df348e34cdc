"""Define the facts that the stage `questions` uses about the environments of its sources."""

from __future__ import annotations

from typing import Any

from treadle.core.config import Operational, Section


class TaskEnvironment(Section):
    """Facts that the stage `questions` uses about an environment."""

    kind: str = "question"
    """Type of the environment, part of a question's key."""
    needs_answers: bool = True
    """Whether every question needs a gold answer."""
    brings_tasks: bool = False
    """Whether the type has tasks of its own."""
    tasks_digest: str = ""
    """Digest of what its tasks depend on, except split and seed; empty if they are not read."""
    settings: Operational[dict[str, Any] | None] = None
    """Settings of the environment; None if its tasks are not read."""


QUESTION_ENVIRONMENT = TaskEnvironment()
"""An environment of the type `question`."""
