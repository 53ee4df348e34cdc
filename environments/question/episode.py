"""Run one episode of a question: tools with limits, and the end of the rollout at an answer.

Limits: docs/behaviour/agent.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.agent.contract import EpisodeOptions, InitialState, ModelTurn, Observation, Outcome, StepContext, Task
from treadle.agent.tools.outcome import Tool
from treadle.agent.tools.source import SharedTool, ToolSource
from treadle.environments.question.schemas import schema_of
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.tools.calls import CallLimits, EpisodeCalls


def shared_tools(tools: Mapping[str, Tool]) -> dict[str, SharedTool]:
    """Return a tool source for each tool whose only argument is a text; all episodes share it."""
    return {name: SharedTool(tool, schema_of(name)) for name, tool in tools.items()}


class QuestionEpisode:
    """Episode with tools and limits. All episodes share the sources of tools; each has its own ledger of calls."""

    def __init__(
        self, settings: QuestionSettings, tools: Mapping[str, Tool], sources: Mapping[str, ToolSource] | None = None
    ) -> None:
        """Prepare an episode; `tools` take only a text as argument, `sources` are those of `environment.tools`."""
        self._settings = settings
        self._dialect = settings.turn_dialect
        self._calls = EpisodeCalls(
            {**shared_tools(tools), **(sources or {})} if tools else sources or {}, self._dialect
        )

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Count the calls of a prefix that is continued; return the system message (if any), question, and tools."""
        settings, additional = self._settings, options.additional_calls
        limits = CallLimits(
            lambda entry: settings.entry_limit(entry, additional), settings.total_limit(additional), settings.on_limit
        )
        schemas = await self._calls.begin(task, options, limits)
        return InitialState(settings.first_messages(task), schemas if self._dialect.ends_every_turn else ())

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run the calls of the turn, refuse those over a limit, or end the rollout."""
        if turn.calls:
            return await self._calls.run(turn, context)
        if self._dialect.has_answer(turn):
            return Observation(status="answered")
        return Observation(status="no_answer") if turn.ended == "stop" else self._unmarked(turn)

    def _unmarked(self, turn: ModelTurn) -> Observation:
        """React to a turn without a call or an answer."""
        if turn.ended in ("filtered", "context_full", "budget"):
            return Observation(status=turn.ended)
        if self._settings.on_unmarked == "continue" and not turn.is_empty:
            return Observation()
        return Observation(status="length" if turn.ended == "length" else "no_answer")

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Count the calls of an observation; restore the state of tools that keep one."""
        await self._calls.replay(turn, observation, context)

    async def outcome(self) -> Outcome | None:
        """Return the outcome that tools with state report; an answer is scored from the stored rollout."""
        return await self._calls.outcome()

    async def close(self) -> None:
        """Release tools with state."""
        await self._calls.close()
