"""Run one dialogue: every message of the agent gets a reply of the person, until it answers or its turns are used up.

Paper: arXiv 2503.15478 (ColBench, backend programming). Rules: docs/guides/colbench.md.
"""

from __future__ import annotations

from treadle.agent.contract import (
    EpisodeOptions,
    InitialState,
    Message,
    ModelTurn,
    Observation,
    Outcome,
    StepContext,
    Task,
)
from treadle.agent.role import RoleModel
from treadle.agent.tools.workspace.files import BadTask
from treadle.core.errors import ToolError
from treadle.environments.colbench.dialect import FINAL, read_turn
from treadle.environments.colbench.human import Person, Said, human_messages
from treadle.environments.colbench.settings import ColbenchSettings
from treadle.environments.colbench.task import ProgramTask

NOTICE = f"\n\n[One message is left. It must be the final answer: {FINAL} and then the code.]"
"""Text appended to the person's last reply, so that the agent's last message is an answer, not a question."""
_ENDED_BY_ENGINE = ("filtered", "context_full", "budget")


class BackendEpisode:
    """Episode of one dialogue; see `treadle.agent.contract.Episode`."""

    def __init__(self, settings: ColbenchSettings, human: RoleModel | None) -> None:
        self._settings = settings
        self._human = human
        self._dialogue: list[Said] = []
        self._status: str | None = None
        self._max_turns = settings.turn_limit()

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Return the system message and the person's request. Raises ToolError for a task without a reference."""
        self._task, self._options = task, options
        try:
            self._hidden = ProgramTask.of(task.payload)
        except BadTask as error:
            raise ToolError(f"the payload of task {task.key} cannot be used: {error}") from None
        self._max_turns = self._settings.turn_limit(options.additional_calls)
        self._dialogue = [Said("human", task.text)]
        self._status = None
        return InitialState(self._settings.first_messages(task))

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Ask the person for a reply to a turn, or end the dialogue; a turn after the end changes nothing.

        If the last allowed turn has no answer, the dialogue ends with `max_turns`, and the visible text of this turn is
        the answer. Raises ModelError if the person cannot be asked.
        """
        if self._status is None:
            self._status = self._ending(turn)
        if self._status is not None:
            return Observation(status=self._status)
        reply = await self._reply(turn, context)
        self._keep(turn, reply)
        return Observation(messages=(Message(reply + self._notice(turn)),))

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Restore the recorded reply and status; the person is not asked again."""
        if observation.messages:
            self._keep(turn, observation.messages[0].text.removesuffix(self._notice(turn)))
        self._status = observation.status

    def _ending(self, turn: ModelTurn) -> str | None:
        if turn.ended in _ENDED_BY_ENGINE:
            return turn.ended
        if read_turn(turn.text, legacy=self._settings.is_legacy).answer is not None:
            return "answered"
        return "max_turns" if turn.number + 1 >= self._max_turns else None

    def _notice(self, turn: ModelTurn) -> str:
        is_next_last = turn.number + 2 == self._max_turns
        return NOTICE if is_next_last and not self._settings.is_legacy else ""

    def _keep(self, turn: ModelTurn, reply: str) -> None:
        self._dialogue += [Said("agent", self._shown(turn)), Said("human", reply)]

    def _shown(self, turn: ModelTurn) -> str:
        visible = read_turn(turn.text, legacy=self._settings.is_legacy).visible
        return visible if self._settings.is_legacy else visible.strip()

    async def _reply(self, turn: ModelTurn, context: StepContext) -> str:
        settings = self._settings
        messages = human_messages(
            settings.human_prompt,
            self._task.text,
            self._hidden.reference,
            [*self._dialogue, Said("agent", self._shown(turn))],
            legacy=settings.is_legacy,
        )
        person = Person(settings, self._human, self._task.key, self._options)
        return await person.reply(messages, turn.number, context.deadline)

    async def outcome(self) -> Outcome | None:
        """Return None: a scorer runs the tests later, from the stored rollout."""
        return None

    async def close(self) -> None:
        """Do nothing."""
