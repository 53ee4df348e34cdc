"""Hold the types of environments that a service serves: which tasks they have, and whether instances get processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.environments.custom.instance_class import InstanceClassSettings
from treadle.environments.registry import ENVIRONMENTS
from treadle.environments.service.backends import MAX_CPU_S, Backend, LocalInstance
from treadle.environments.service.episodes import check_servable, open_host
from treadle.environments.service.errors import ServiceError
from treadle.environments.service.hosting import EnvironmentHost, TaskRow
from treadle.environments.service.processes import ProcessInstance, Template
from treadle.environments.settings import EnvironmentSettings

_log = logging.getLogger(__name__)

_KEPT_SETS = 16
"""Maximum number of task lists kept in memory, one per split and seed."""
_SPLITS = ("train", "heldout")
"""Splits that are searched for a task that was not listed before."""


def runs_foreign_code(settings: EnvironmentSettings) -> bool:
    """Return whether an environment runs code that is not Treadle's, so that its instances must be isolated."""
    return settings.type not in ENVIRONMENTS.shipped or bool(settings.tools)


class ServedKind:
    """A type of environment with its settings.

    Attributes:
        name: What callers send as `env_type`.
        needs_process: Whether each instance has a process of its own.
    """

    def __init__(self, name: str, settings: EnvironmentSettings, on_count: Callable[[int], None]) -> None:
        """Prepare; `on_count` gets 1 for each process that starts and -1 for each that ends. Raises ConfigError."""
        check_servable(settings)
        self.name = name
        self.needs_process = runs_foreign_code(settings)
        self._takes_any_task = isinstance(settings, InstanceClassSettings)
        """Whether only the environment can decide if an id is a task."""
        self._settings = settings
        self._template = Template(settings, on_count)
        self._host: EnvironmentHost | None = None
        self._stack = contextlib.AsyncExitStack()
        self._tasks: OrderedDict[tuple[str, int], dict[str, TaskRow]] = OrderedDict()
        self._listing = asyncio.Lock()

    async def open(self) -> None:
        """Load the environment. Raises ConfigError, EngineError, ToolError and EndpointUnavailable."""
        if self.needs_process:
            await self._template.open()
        else:
            self._host = await self._stack.enter_async_context(open_host(self._settings))

    async def close(self) -> None:
        """Close the environment, and end all its processes."""
        try:
            await self._template.close()
        finally:
            await self._stack.aclose()

    def instance(self, task: TaskRow, instance_id: str) -> Backend:
        """Return a new instance, which has not started."""
        if self.needs_process or self._host is None:
            return ProcessInstance(self._template, task, instance_id)
        return LocalInstance(self._host, task, instance_id, self._note_cpu)

    async def task_ids(self, split: str, seed: int, params: Mapping[str, Any]) -> Sequence[str]:
        """Return the ids of the tasks of a split. Raises the environment's errors, and those of starting a process."""
        if self._takes_any_task:
            return [row["question_key"] for row in await self._rows(split, seed, params)]
        return list(await self._load(split, seed))

    async def task(self, task_id: str) -> TaskRow:
        """Return a task by its id. Raises ServiceError if no split has such a task, and the errors of `task_ids`."""
        if self._takes_any_task:
            return {"question_key": task_id, "question": "", "choices": (), "dataset": self.name, "domain": ""}
        for known in self._tasks.values():
            if task_id in known:
                return known[task_id]
        for split in _SPLITS:
            if task_id in (found := await self._load(split, 0)):
                return found[task_id]
        raise ServiceError("unknown_task", f"{self.name} has no task {task_id!r}; get_env_profile lists them")

    async def _load(self, split: str, seed: int) -> Mapping[str, TaskRow]:
        async with self._listing:
            key = split, seed
            if key not in self._tasks:
                rows = await self._rows(split, seed, {})
                self._tasks[key] = {row["question_key"]: row for row in rows}
            self._tasks.move_to_end(key)
            while len(self._tasks) > _KEPT_SETS:
                self._tasks.popitem(last=False)
            return self._tasks[key]

    async def _rows(self, split: str, seed: int, params: Mapping[str, Any]) -> Sequence[TaskRow]:
        if self._host is not None:
            return await self._host.tasks(split, seed, params)
        worker = await self._template.fork()
        try:
            asked = {"op": "tasks", "split": split, "seed": seed, "params": params}
            rows: list[dict[str, Any]] = await worker.ask(asked)
            return rows
        finally:
            await worker.stop()

    def _note_cpu(self, spent_s: float) -> None:
        if spent_s > MAX_CPU_S and not self.needs_process:
            self.needs_process = True
            _log.warning(
                "a call of %s took %.0f ms of processor time, during which the service answered no other; its further "
                "instances get a process each",
                self.name,
                1000 * spent_s,
            )
