"""Run one episode of a planning agent: batches of calls, notices, and the end of the rollout at an answer."""

from __future__ import annotations

from dataclasses import replace

from treadle.agent.contract import (
    CallRecord,
    EpisodeOptions,
    InitialState,
    Message,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.dialects.base import RESULT, Segment
from treadle.environments.planning.calls import PlannedCalls
from treadle.environments.planning.entry_calls import entries_prompt
from treadle.environments.planning.figures import plan_figures
from treadle.environments.planning.guards import NOTICES, StepGuard
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.tools.calls import CallLimits

LAST_TURN_NOTICE = "One turn is left: give the answer now. Nothing else is accepted, and no call will be run."
_MAX_SHOWN_PROBLEMS = 8


class PlanningEpisode:
    """Episode of a planning agent; see `treadle.agent.contract.Episode`."""

    def __init__(self, settings: PlanningSettings, calls: PlannedCalls) -> None:
        self._settings = settings
        self._dialect = settings.turn_dialect
        self._calls = calls
        self._max_turns = settings.turn_limit()
        self._segments: list[Segment] = []
        self._records: list[CallRecord] = []
        self._turns_of_messages: list[int] = []
        self._guard = StepGuard(self._dialect) if settings.dialect in ("web", "all") else None

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Start the tools; return instructions and question as one message."""
        settings, additional = self._settings, options.additional_calls
        self._max_turns = settings.turn_limit(additional)
        limits = CallLimits(
            lambda entry: settings.entry_limit(entry, additional), settings.total_limit(additional), "refuse"
        )
        await self._calls.begin(task, options, limits)
        text = settings.user_text(task, entries_prompt(self._calls.entry_schemas()))
        return InitialState([{"role": "user", "content": text}])

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Run the calls of the turn, report the problems of a plan, or end the rollout.

        Calls of the last turn are not run: the rollout ends with `max_turns`. In the dialects `web` and `all`, the
        third candidate answer ends the rollout, and repeated steps are not run.
        """
        if self._guard is not None:
            self._guard.read(turn)
        observation = await self._reaction(turn, context)
        self._keep(turn, observation)
        return observation

    async def _reaction(self, turn: ModelTurn, context: StepContext) -> Observation:
        shown_from = self._turns_of_messages[context.num_left_out - 1] + 1 if context.num_left_out else 0
        self._calls.shown_from = shown_from
        if self._dialect.has_answer(turn):
            return Observation(status="answered")
        if self._guard is not None and self._guard.is_last_candidate(turn):
            return Observation(status="answered")
        if turn.calls and turn.number + 1 >= self._max_turns:
            return Observation(status="max_turns")
        fault = self._guard.fault(turn, shown_from) if self._guard is not None and turn.calls else None
        if fault is not None:
            observation = self._calls.refuse(turn, fault, NOTICES[fault])
        elif turn.calls:
            observation = await self._calls.run(turn, context)
        elif (notice := self._plan_notice(turn)) is not None:
            observation = Observation(messages=(notice,))
        else:
            return Observation(status=_ending(turn))
        if turn.number + 2 == self._max_turns:
            notice = self._dialect.result(LAST_TURN_NOTICE)
            observation = replace(observation, messages=(*observation.messages, notice))
        return observation

    def _plan_notice(self, turn: ModelTurn) -> Message | None:
        """Return a message with the problems of a turn's plan; None if the turn has no invalid plan, or was cut off."""
        if turn.is_empty or turn.ended not in ("stop", "end_of_turn"):
            return None
        found = self._dialect.find_plan(turn.text)
        if found is None or found[0].is_valid:
            return None
        problems = "; ".join(problem.text for problem in found[0].problems[:_MAX_SHOWN_PROBLEMS])
        return self._dialect.result(
            f"The plan cannot be followed: {problems}. Call tools by their tags, or plan again."
        )

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Count the calls of an observation; restore the state of tools that keep one."""
        if self._guard is not None:
            self._guard.read(turn)
        if turn.calls:
            await self._calls.replay(turn, observation, context)
        self._keep(turn, observation)

    def _keep(self, turn: ModelTurn, observation: Observation) -> None:
        if self._guard is not None:
            self._guard.keep(turn, observation)
        self._segments += self._dialect.segments(turn.text)
        self._segments += [Segment(RESULT, message.text, 0, 0) for message in observation.messages]
        self._records += observation.calls
        self._turns_of_messages += [turn.number] * len(observation.messages)

    async def outcome(self) -> Outcome | None:
        """Return the outcome that tools report, with the figures of the rollout added to its parts.

        The answer is scored later, from the stored rollout.
        """
        calls = [
            {"id": record.id, "turn": record.turn, "status": record.status, "note": record.note}
            for record in self._records
        ]
        faults = self._dialect.faults(self._segments, [(record.tool, record.status) for record in self._records])
        segments = [{"kind": one.kind, "text": one.text} for one in self._segments]
        found = plan_figures(segments, calls, self._dialect, self._settings.scheduling, faults)
        candidates = self._guard.parts() if self._guard is not None else {}
        told = await self._calls.outcome() or Outcome()
        return replace(told, parts={**found.parts(), **candidates, **told.parts})

    async def close(self) -> None:
        """Release tools with state."""
        await self._calls.close()


def _ending(turn: ModelTurn) -> str:
    """Return how the rollout ends at a turn without calls and answer."""
    return turn.ended if turn.ended in ("filtered", "context_full", "budget", "length") else "no_answer"
