"""Define the requests of the experience service."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from treadle.core.untrusted.json_text import load_json
from treadle.rl.experience.settings import WORKSPACE

WorkspaceQuery = Annotated[str | None, Query(pattern=WORKSPACE)]
"""Workspace in a URL."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")

    workspace_id: str | None = Field(default=None, pattern=WORKSPACE)
    """Workspace; none means that of the configuration."""


class RetrieveTaskMemory(_Body):
    """The body of `POST /retrieve_task_memory`."""

    query: str
    """JSON text of the initial messages of a task, or any text."""
    top_k: int = Field(default=3, ge=1)
    """Maximum number of records."""


class TrajectoryMessage(BaseModel):
    """One message of a trajectory."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str


class ScoredTrajectory(BaseModel):
    """A trajectory with its score."""

    model_config = ConfigDict(extra="ignore")

    messages: list[TrajectoryMessage] = Field(min_length=1)
    score: FiniteFloat


class SummaryTaskMemory(_Body):
    """The body of `POST /summary_task_memory`."""

    trajectories: list[ScoredTrajectory] = Field(min_length=1)
    """Trajectories of any tasks."""


def query_of(text: str) -> str:
    """Return the words to search for: the contents of messages other than the system's, or the text if it is no list.

    Callers send the JSON text of a task's initial messages.
    """
    try:
        found = load_json(text.encode())
    except ValueError:
        return text
    if not isinstance(found, list):
        return text
    contents = [
        message["content"]
        for message in found
        if isinstance(message, dict) and isinstance(message.get("content"), str) and message.get("role") != "system"
    ]
    return "\n".join(contents)
