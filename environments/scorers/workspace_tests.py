"""Score rollouts by the hidden tests that ran on their workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from treadle.agent.tools.workspace.files import check_payload
from treadle.environments.scorers.outcome import OutcomeScorer
from treadle.environments.settings import EnvironmentSettings


class WorkspaceTestsScorer(OutcomeScorer):
    """Take the outcome of the hidden tests, which ran at the end of the episode."""

    PAYLOAD: ClassVar[tuple[str, ...]] = ("tests",)
    WITHOUT_OUTCOME: ClassVar[str] = (
        "no hidden tests ran at the end of the rollout; its environment needs a tool of type workspace"
    )

    type: str = "workspace_tests"
    """Hidden tests on the workspace."""

    @classmethod
    def missing(cls, environment: EnvironmentSettings) -> str | None:
        """See `Scorer`."""
        tools = [tool for tool in environment.tools.values() if tool.max_calls != 0]
        has_one = any(tool.type == "workspace" for tool in tools)
        return None if has_one else 'a tool with type = "workspace" in environment.tools'

    @classmethod
    def check_payload(cls, payload: Mapping[str, object]) -> None:
        """See `Scorer`."""
        check_payload(payload)
