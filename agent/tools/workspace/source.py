"""Give each episode a workspace with a shell and tools for files, and run the hidden tests at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.agent.contract import Outcome, Task
from treadle.agent.tools.outcome import CallContext, ToolOutcome, clip
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.source import ToolResume
from treadle.agent.tools.workspace.backend import FOLDER, CommandResult, UnusableWorkspace, Workspace, Workspaces
from treadle.agent.tools.workspace.files import BadTask, HiddenTests, files_of, hidden_tests_of, packed
from treadle.agent.tools.workspace.hidden_tests import run_tests
from treadle.agent.tools.workspace.tools import SCHEMAS, ToolName, answer
from treadle.core.errors import ToolError
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import work_clock

_FILL_S = 60.0


class WorkspaceSource:
    """Source of the tools of workspaces; see `ToolSource`."""

    resume: ToolResume = "reenact"

    def __init__(
        self, workspaces: Workspaces, tools: Sequence[ToolName], *, time_limit_s: float, max_output_chars: int
    ) -> None:
        self.schemas: Sequence[ToolSchema] = tuple(SCHEMAS[name] for name in tools)
        self._workspaces = workspaces
        self._time_limit_s = time_limit_s
        self._max_output_chars = max_output_chars

    async def __aenter__(self) -> WorkspaceSource:
        await self._workspaces.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._workspaces.__aexit__(*exc)

    def facts(self) -> dict[str, str]:
        """Return isolation and versions."""
        return self._workspaces.facts()

    async def episode(self, task: Task, seed: int) -> WorkspaceTools:
        """Return the tools of one rollout, with the task's files in its workspace. Raises ToolError."""
        try:
            files, tests = files_of(task.payload), hidden_tests_of(task.payload)
        except BadTask as error:
            raise ToolError(f"the payload of task {task.key} cannot be used: {error}") from None
        workspace = await self._workspaces.open(derive_seed(seed, task.key))
        try:
            await _fill(workspace, task.key, files)
        except BaseException:
            await asyncio.shield(workspace.close())
            raise
        return WorkspaceTools(
            workspace, self.schemas, files, tests, time_limit_s=self._time_limit_s, max_chars=self._max_output_chars
        )


async def _fill(workspace: Workspace, key: str, files: Mapping[str, bytes]) -> None:
    if not files:
        return
    result = await workspace.run(f"tar -xof - -C {FOLDER}", time_limit_s=_FILL_S, stdin=packed(files))
    if result.ending != "exited" or result.exit_code != 0:
        why = f"ended by {result.ending}" if result.ending != "exited" else f"exit code {result.exit_code}"
        raise ToolError(f"the files of task {key} do not fit into the workspace ({why}); raise its size_mb")


class WorkspaceTools:
    """Tools of one episode; see `EpisodeTools`. Its calls run one at a time, in the order in which they were made."""

    def __init__(
        self,
        workspace: Workspace,
        schemas: Sequence[ToolSchema],
        files: Mapping[str, bytes],
        tests: HiddenTests | None,
        *,
        time_limit_s: float,
        max_chars: int,
    ) -> None:
        self.schemas = schemas
        self._workspace = workspace
        self._files = files
        self._tests = tests
        self._time_limit_s = time_limit_s
        self._max_chars = max_chars
        self._turn = asyncio.Lock()
        self._has_ended = False

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Run one call after the earlier ones have returned."""
        async with self._turn:
            if self._has_ended:
                raise ToolError("the episode has ended: its workspace may hold the hidden tests")
            clock, seconds = work_clock(), 0.0
            until = deadline if context.budget_s is None else clock.time() + context.budget_s

            async def run(command: str, stdin: bytes) -> CommandResult:
                nonlocal seconds
                limit_s = max(0.0, min(self._time_limit_s, until - clock.time()))
                result = await self._workspace.run(command, time_limit_s=limit_s, stdin=stdin)
                seconds += result.seconds
                return result

            status, text = await answer(name, arguments, run)
        return ToolOutcome(status, clip(text, self._max_chars), seconds)

    async def outcome(self) -> Outcome | None:
        """Run the hidden tests on the workspace; None if the task has none."""
        if self._tests is None:
            return None
        async with self._turn:
            self._has_ended = True
            try:
                fresh = await self._workspace.fresh()
            except UnusableWorkspace:
                return Outcome(0.0, False)
            try:
                return await run_tests(fresh, self._tests, self._files)
            finally:
                await asyncio.shield(fresh.close())

    async def close(self) -> None:
        """Delete the workspace."""
        await asyncio.shield(self._workspace.close())
