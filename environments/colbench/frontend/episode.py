"""Run one dialogue about a page: the person sees a picture of each version, until the agent marks one as final.

Paper: arXiv 2503.15478 (ColBench, frontend design). Rules: docs/guides/colbench.md.
"""

from __future__ import annotations

import asyncio

from treadle.agent.browser.renderer import PageNotDrawn
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
    call_id,
)
from treadle.agent.role import RoleModel
from treadle.agent.tools.workspace.files import BadTask
from treadle.core.errors import ToolError
from treadle.environments.colbench.dialect import FINAL, read_turn
from treadle.environments.colbench.frontend.drawing import PageDrawer
from treadle.environments.colbench.frontend.human import comparing_messages
from treadle.environments.colbench.frontend.markup import PAGE, TARGET, find_page, target_page
from treadle.environments.colbench.frontend.settings import FrontendSettings
from treadle.environments.colbench.human import Person
from treadle.environments.planning.tools.pictures import Picture

NOTICE = f"\n\n[One message is left. It must be the final page, behind {FINAL}]"
"""Text appended to the person's last reply, so that the agent makes its next page the final one."""
_ENDED_BY_ENGINE = ("filtered", "context_full", "budget")


class FrontendEpisode:
    """Episode of one dialogue; see `treadle.agent.contract.Episode`."""

    def __init__(self, settings: FrontendSettings, human: RoleModel | None, drawer: PageDrawer) -> None:
        self._settings, self._human, self._drawer = settings, human, drawer
        self._status: str | None = None
        self._max_turns = settings.turn_limit()

    async def reset(self, task: Task, options: EpisodeOptions) -> InitialState:
        """Return the system message and the person's request.

        Raises ToolError for a task without a target page, or whose target page cannot be drawn.
        """
        self._task, self._options = task, options
        try:
            self._target = await self._drawer.draw(target_page(task.payload))
        except BadTask as error:
            raise ToolError(f"the payload of task {task.key} cannot be used: {error}") from None
        except PageNotDrawn as error:
            raise ToolError(f"the target of task {task.key} cannot be drawn: {error}") from None
        self._max_turns = self._settings.turn_limit(options.additional_calls)
        self._status = None
        return InitialState(self._settings.first_messages(task))

    async def step(self, turn: ModelTurn, context: StepContext) -> Observation:
        """Draw the page of a turn and ask the person about it, or end the dialogue; a turn after the end does nothing.

        Raises ModelError if the person cannot be asked, SandboxError without a browser, and StorageError.
        """
        if self._status is not None:
            return Observation(status=self._status)
        self._status = self._ending(turn)
        if self._status in _ENDED_BY_ENGINE:
            return Observation(calls=self._target_call(turn), status=self._status)
        picture, call = await self._drawn(turn)
        calls = (*self._target_call(turn), call)
        if self._status is not None:
            return Observation(calls, status=self._status)
        reply = await self._reply(turn, context, picture)
        return Observation(calls, (Message(reply + self._notice(turn)),))

    async def replay(self, turn: ModelTurn, observation: Observation, context: StepContext) -> None:
        """Restore the recorded status; the person is not asked again, and no page is drawn again."""
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

    def _target_call(self, turn: ModelTurn) -> tuple[CallRecord, ...]:
        """Return the call record of the target page's picture for the first turn, and no record for later turns."""
        if turn.number:
            return ()
        return (CallRecord(TARGET, "", "ok", turn.number, note=self._target.note, id=call_id(turn.number, TARGET, 0)),)

    async def _drawn(self, turn: ModelTurn) -> tuple[Picture | None, CallRecord]:
        """Draw the page in a turn; return its picture and a call record.

        The picture is None if the turn has no page, or the page cannot be drawn.
        """
        legacy = self._settings.is_legacy
        reading = read_turn(turn.text, legacy=legacy)
        page = None if legacy or reading.answer is None else find_page(reading.answer)
        page = page or find_page(reading.visible, legacy=legacy)
        name = call_id(turn.number, PAGE, 0)
        if page is None:
            return None, CallRecord(PAGE, "", "empty", turn.number, note="the message has no page", id=name)
        began = asyncio.get_running_loop().time()
        try:
            picture = await self._drawer.draw(page.html)
        except PageNotDrawn as error:
            return None, CallRecord(PAGE, "", "error", turn.number, note=str(error), id=name)
        seconds = asyncio.get_running_loop().time() - began
        note = f"{picture.note}, its closing tag was missing" if page.is_repaired else picture.note
        return picture, CallRecord(PAGE, "", "ok", turn.number, seconds=seconds, note=note, id=name)

    async def _reply(self, turn: ModelTurn, context: StepContext, picture: Picture | None) -> str:
        shown = None if picture is None else picture.data
        messages = comparing_messages(self._settings.human_prompt, shown, self._target.data)
        person = Person(self._settings, self._human, self._task.key, self._options)
        return await person.reply(messages, turn.number, context.deadline)

    async def outcome(self) -> Outcome | None:
        """Return None: a scorer compares the stored pictures later."""
        return None

    async def close(self) -> None:
        """Do nothing."""
