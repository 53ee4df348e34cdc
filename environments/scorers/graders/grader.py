"""Score rollouts by the grades of a model, with or without a reference that solves the task (arXiv 2511.10395)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import orjson
from pydantic import Field, PrivateAttr

from treadle.agent.contract import Task
from treadle.core.answers.score import Score
from treadle.core.chat_turns import well_formed
from treadle.core.config import digest_json
from treadle.core.errors import ConfigError, ContextTooLong, DeadlineExceeded
from treadle.core.gather import gather_all
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.llm.types import Completion
from treadle.core.seeds import derive_seed
from treadle.core.work_clock import timed_work
from treadle.environments.scorers.base import Scale, Scorer, Stores, no_verdict
from treadle.environments.scorers.graders.grading import HIGHEST, GoalGrade, grading_messages, read_grade
from treadle.environments.stored_rollout import StoredRollout

if TYPE_CHECKING:
    from treadle.core.llm.pool import ModelPool

Messages = Sequence[Mapping[str, str]]
Ask = Callable[[Messages, int], Awaitable[str | None]]
"""Function that returns the model's reply to a prompt and a request number; None if there is no reply."""

GRADES = "grades"
"""Name of the store of a run with the replies of graders."""

_JSON_REPLY = {"response_format": {"type": "json_object"}}


class KeptReplies(Protocol):
    """Values by keys of 32 hex digits, never replaced; `treadle.core.store.keyed_store.KeyedStore` is one."""

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none."""
        ...

    def add(self, key: str, value: bytes) -> bytes:
        """Store a value unless the key has one; return the stored one."""
        ...


class _RepliesInMemory:
    """Replies that are kept as long as the process runs."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """See `KeptReplies`."""
        return self._values.get(key)

    def add(self, key: str, value: bytes) -> bytes:
        """See `KeptReplies`."""
        return self._values.setdefault(key, value)


class Grader(Scorer):
    """Grade of a model, from 0 to 1; a rollout is right if the goal of its task is met."""

    PARTS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"grade": "grade: 0 to 40 if the goal is missed, 60 to 100 if it is met"}
    )
    TIME_LIMIT_S: ClassVar[float | None] = None  # Each request has a limit, without waiting for a server.
    SHOWS_REFERENCE: ClassVar[bool] = False
    """Whether the model is shown what solves the task."""
    COUNTS_GOALS: ClassVar[bool] = False
    """Whether the score is 1 for a goal that is met and 0 for one that is missed, instead of the grade."""
    NUM_GRADES: ClassVar[int] = 1
    """Number of independent grades whose mean is the score."""

    type: str = "llm"
    """A model grades the rollout."""
    model: ModelSettings | None = None
    """The model, with its endpoints, as in `[models.<name>]`; a service that is reachable from every process that
    scores, training programs included."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Softmax temperature; 0 means greedy."""
    max_tokens: int = Field(default=2048, ge=16)
    """Most new tokens of a reply."""
    json_mode: bool = True
    """Whether the service is asked to reply with a JSON object (`response_format`)."""
    attempts: int = Field(default=3, ge=1)
    """Most requests per grade. If no reply can be read, the rollout has no verdict."""
    request_time_s: float = Field(default=300.0, gt=0.0)
    """Time limit of one request in seconds, without waiting for the server."""
    step_chars: int = Field(default=2000, ge=80)
    """Most characters of an action or an observation that the model is shown."""
    max_steps: int = Field(default=60, ge=2)
    """Most steps that the model is shown; of a longer rollout, those in the middle are left out."""
    _replies: KeptReplies = PrivateAttr(default_factory=_RepliesInMemory)
    _pool: ModelPool | None = PrivateAttr(default=None)
    _asked: dict[str, asyncio.Task[Completion]] = PrivateAttr(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise ConfigError without a model that has endpoints; `where` is the key that names the grader."""
        if self.model is None or not self.model.endpoints:
            raise ConfigError(
                f"{where}: the grader {self.type} has no model; name an entry under [scorers] with type = "
                f'"{self.type}" and model = {{ model = "grader", endpoints = [{{ url = "http://localhost:8000/v1" }}] '
                "}"
            )

    def use_stores(self, store: Stores) -> None:
        """Store replies in the run, so that later attempts do not pay for them again."""
        self._replies = store(GRADES)

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of the grades."""
        return Sampling(temperature=self.temperature, top_p=1.0, max_tokens=self.max_tokens)

    def service(self) -> ModelSettings:
        """Return the model as the scorer calls it: with messages, with `response_format` in JSON mode.

        Raises ConfigError without a model.
        """
        self.check("scorers")
        assert self.model is not None, "checked"
        extra = {**_JSON_REPLY, **self.model.extra_body} if self.json_mode else self.model.extra_body
        return self.model.model_copy(update={"api": "chat", "extra_body": extra})

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Connect to the model. Raises ConfigError without one."""
        from treadle.core.llm.pool import ModelPool

        async with ModelPool(f"scorers.{self.type}", self.service()) as pool:
            self._pool, self._asked = pool, {}
            try:
                yield
            finally:
                self._pool = None

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """See `Scorer`. Raises EndpointUnavailable and other ModelErrors if the model cannot be asked."""
        return await self.grade(task, rollout, self._reply)

    async def grade(self, task: Task, rollout: StoredRollout, ask: Ask) -> Score:
        """Return the score of a rollout from replies that `ask` returns; without a verdict if a grade is missing."""
        messages = grading_messages(
            task,
            rollout,
            shows_reference=self.SHOWS_REFERENCE,
            step_chars=self.step_chars,
            max_steps=self.max_steps,
        )
        firsts = [number * self.attempts for number in range(self.NUM_GRADES)]
        grades = await gather_all([self._grade(messages, first, ask) for first in firsts])
        read = [grade for grade in grades if grade is not None]
        if len(read) < self.NUM_GRADES:
            return no_verdict(f"no reply of the model is a grade, after {self.attempts} requests", self.type)
        values = [float(one.is_met) if self.COUNTS_GOALS else one.number / HIGHEST for one in read]
        num_met = sum(one.is_met for one in read)
        return Score(
            math.fsum(values) / len(values),
            2 * num_met > len(read),
            self.type,
            parts={"grade": math.fsum(one.number for one in read) / len(read)},
            detail=_detail(read),
        )

    async def _grade(self, messages: Messages, first: int, ask: Ask) -> GoalGrade | None:
        """Return the first reply that is a grade; requests are numbered from `first`."""
        for number in range(first, first + self.attempts):
            text = await ask(messages, number)
            if text is None:
                return None
            if (grade := read_grade(text)) is not None:
                return grade
        return None

    async def _reply(self, messages: Messages, number: int) -> str | None:
        """Return the reply to a request; None if the prompt is too long or time runs out. Send equal requests once."""
        key = digest_json([self._identity(), messages, number])[:32]
        known = await asyncio.to_thread(self._replies.get, key)
        if known is not None:
            return Completion.from_json(known).text
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.ensure_future(self._request(messages, number, key))
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        try:
            completion = await asyncio.shield(task)
        except (ContextTooLong, DeadlineExceeded):
            return None
        return completion.text

    async def _request(self, messages: Messages, number: int, key: str) -> Completion:
        if self._pool is None:
            raise ConfigError(f"the grader {self.type} is not open")
        with timed_work() as clock:
            completion = await self._pool.chat(
                messages,
                self.sampling,
                seed=derive_seed(0, "grade", key, number),
                session=key,
                deadline=clock.time() + self.request_time_s,
            )
        return Completion.from_json(await asyncio.to_thread(self._replies.add, key, completion.to_json()))

    def _identity(self) -> list[Any]:
        service = self.service()
        return [service.model, service.revision, service.extra_body, self.temperature, self.max_tokens]


def _detail(grades: Sequence[GoalGrade]) -> str:
    """Return the grades with their reasons as JSON."""
    rows = [{"grade": one.number, "rationale": well_formed(one.rationale)} for one in grades]
    return orjson.dumps(rows).decode()


class ReferenceGrader(Grader):
    """Grade of a model that is shown what solves the task, from 0 to 1."""

    SHOWS_REFERENCE: ClassVar[bool] = True

    type: str = "llm-gt"
    """A model grades the rollout, and is shown what solves the task."""


class GoalGrader(Grader):
    """A model says whether the goal of a rollout's task is met: 1 or 0."""

    SCALE: ClassVar[Scale] = "binary"
    COUNTS_GOALS: ClassVar[bool] = True

    type: str = "llm-binary"
    """A model says whether the goal is met."""


class ReferenceGoalGrader(GoalGrader):
    """A model that is shown what solves the task says whether the goal of a rollout is met: 1 or 0."""

    SHOWS_REFERENCE: ClassVar[bool] = True

    type: str = "llm-binary-gt"
    """A model says whether the goal is met, and is shown what solves the task."""


class AverageGrader(Grader):
    """Mean of three independent grades of a model; the goal counts as met if most grades are at least `LOWEST_MET`."""

    NUM_GRADES: ClassVar[int] = 3

    type: str = "avg-llm"
    """A model grades the rollout three times."""
    temperature: float = Field(default=0.7, gt=0.0)
    """Softmax temperature; greedy grades would all be the same."""


class AverageReferenceGoalGrader(AverageGrader):
    """Share of a model's three independent verdicts that the goal is met; the model is shown what solves the task."""

    SHOWS_REFERENCE: ClassVar[bool] = True
    COUNTS_GOALS: ClassVar[bool] = True

    type: str = "avg-llm-binary-gt"
    """A model says three times whether the goal is met, and is shown what solves the task."""
