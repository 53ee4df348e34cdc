"""Read the tasks that a type of environment provides, instead of a file.

`run_questions` is given a function that finds the `TaskProvider`; by default it asks the registry of types.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Protocol

from treadle.core.errors import DataError
from treadle.core.steady_loop import SteadyLoop
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings, Split, no_tasks
from treadle.datagen.questions.task_environment import TaskEnvironment
from treadle.environments.registry import ENVIRONMENTS, environment_type, traits_of
from treadle.environments.settings import EnvironmentSettings

Task = Mapping[str, Any]
"""One task: `question` (text), and optionally `payload` (object), `answers`, `choices` (lists of texts), `domain`,
`dataset`, `split`. Other fields go to `meta`."""


class TaskProvider(Protocol):
    """The tasks of a type of environment."""

    def __call__(self, split: Split | None, seed: int) -> Iterable[Task] | AsyncIterable[Task]:
        """Yield the tasks of a split, of all splits if None, in an order that only split and seed decide."""
        ...


FindTasks = Callable[[TaskEnvironment], TaskProvider | None]
"""Function from an environment (its `kind` names the type) to its tasks; None if it provides none."""


def find_tasks(environment: TaskEnvironment) -> TaskProvider | None:
    """Return the tasks that the type of an environment provides."""
    if environment.settings is None:
        return None
    settings = ENVIRONMENTS.parse(environment.settings)
    return partial(_tasks_of, settings) if traits_of(settings).brings_tasks else None


async def _tasks_of(environment: EnvironmentSettings, split: Split | None, seed: int) -> AsyncIterator[Task]:
    splits: tuple[Split, ...] = ("train", "heldout") if split is None else (split,)
    for one in splits:
        async for task in environment_type(environment).tasks(environment, one, seed):
            yield {"split": one, **task}


def task_rows(source: SourceSettings, settings: QuestionsSettings, find: FindTasks) -> Generator[InputRow, None, None]:
    """Yield the tasks of the environment as rows, at most `limit`; nothing is read ahead.

    Raises ConfigError if its type provides none, DataError if there are none in this split.
    """
    environment = settings.environment_of(source)
    provider = find(environment)
    if provider is None:
        raise no_tasks(environment.kind, settings.sources.index(source), source.environment)
    given = provider(source.split, settings.seed)
    number = 0
    with closing(_stepped(given) if isinstance(given, AsyncIterable) else _each(given)) as tasks:
        for number, task in enumerate(tasks, start=1):
            yield _as_row(number, task)
            if number == source.limit:
                return
    if number == 0:
        split = f" in its split {source.split!r}" if source.split else ""
        raise DataError(f"the environment {environment.kind!r} has no tasks{split}; give another split, or a path")


def _as_row(number: int, task: object) -> InputRow:
    if isinstance(task, Mapping):
        return InputRow(number, dict(task))
    return InputRow(number, None, "not_an_object", f"expected a task with fields, not {type(task).__name__}", b"")


def _each(tasks: Iterable[Task]) -> Generator[Task, None, None]:
    yield from tasks


def _stepped(tasks: AsyncIterable[Task]) -> Generator[Task, None, None]:
    """Yield the items of an asynchronous iterator, each awaited when it is asked for."""
    items = aiter(tasks)
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        try:
            while (item := runner.run(_next(items))) is not _END:
                yield item
        finally:
            if (close := getattr(items, "aclose", None)) is not None:
                runner.run(_awaited(close()))


_END: Any = object()


async def _next(items: AsyncIterator[Task]) -> Any:
    return await anext(items, _END)


async def _awaited(pending: Any) -> None:
    await pending
