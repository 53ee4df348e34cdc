"""Define the type `ledger`: an agent works on accounts and orders by calls in lines of JSON."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import Field

from treadle.agent.contract import Call, Message, ModelTurn, Outcome, Task
from treadle.core.seeds import derive_seed
from treadle.environments.custom.base import Done, Environment, Reaction
from treadle.environments.ledger.assignment import SUBMIT, TEXTS, Assignment, Kind, calls_in
from treadle.environments.ledger.book import CALLS, Book, CallError
from treadle.environments.objectives import objective_of

_MAX_CALLS_PER_TURN = 16
_NO_CALL = 'Write a call as one line of JSON, such as {"call": "find_account", "holder": "Ada"}.'


def _told() -> str:
    lines = []
    for name, entry in CALLS.items():
        arguments = ", ".join(f'"{one}": ...' for one in entry.schema.parameters["required"])
        lines.append(f'{{"call": "{name}", {arguments}}}  {entry.schema.description}')
    return "\n".join(
        [
            "You keep a ledger of accounts and orders. All amounts are in cents. Each line of your message that is a "
            "JSON object with a key `call` is carried out, in order; you get one line of JSON per call. Calls:",
            *lines,
            f'{{"call": "{SUBMIT}", "answer": ...}}  Hand the task in; the answer is a number. This ends it.',
        ]
    )


class Ledger(Environment):
    """Toy environment of accounts and orders; every task takes three to six calls."""

    system: ClassVar[str] = _told()
    explores: ClassVar[bool] = True
    scores_references: ClassVar[bool] = True

    num_tasks: int = 200
    """Number of tasks of the split `train`; `heldout` has a quarter of it."""
    max_calls: int = 24
    """Most calls of an episode; past them it ends."""
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)] = tuple(TEXTS)
    """Kinds of its tasks."""
    instructions: str = ""
    """System message in place of the description of all calls, such as a shorter one for a model that knows them."""

    @classmethod
    async def tasks(cls, settings: Any, split: str, seed: int) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the tasks of `train` or `heldout`; other splits have none."""
        count = {"train": settings.num_tasks, "heldout": settings.num_tasks // 4}.get(split, 0)
        seeds = (derive_seed("ledger", split, seed, number) for number in itertools.count())
        made = (one for one in map(Assignment.make, seeds) if one.kind in settings.kinds)
        for assignment in itertools.islice(made, count):
            yield {"question": assignment.text, "payload": {"seed": assignment.seed}}

    async def reset(self, task: Task) -> Sequence[Mapping[str, str]]:
        """Open the book of the task's seed."""
        self._assignment = _assignment_of(task)
        self._book = Book.make(self._assignment.seed)
        self._num_calls = 0
        self._answer: object = None
        self._is_done = False
        system = {"role": "system", "content": self.instructions or self.system}
        return [system, {"role": "user", "content": self._assignment.text}]

    async def step(self, turn: ModelTurn) -> Reaction:
        """Carry out the calls of a turn, in their order."""
        if self._is_done:
            return Done()
        calls = _calls_of(turn)[:_MAX_CALLS_PER_TURN]
        if not calls:
            return _NO_CALL
        results: list[str] = []
        for name, arguments, _ in calls:
            self._num_calls += 1
            if name == SUBMIT:
                self._is_done = True
                self._answer = arguments.get("answer")
                return Done("\n".join([*results, '{"submitted": true}']), reward=self._score())
            results.append(self._run(name, arguments))
            if self._num_calls >= self.max_calls:
                self._is_done = True
                return Done("\n".join(results), reward=self._score(), truncated=True)
        if turn.calls:
            identities = [identity for _, _, identity in calls]
            return [Message(text, "tool", call) for text, call in zip(results, identities, strict=True)]
        return "\n".join(results)

    async def outcome(self) -> Outcome:
        """Return the share of the task that is done; success needs all of it done, and nothing else changed."""
        score = self._score()
        return Outcome(score, None if score is None else score >= 1.0)

    @classmethod
    def hidden_information(cls, settings: Any, task: Task) -> str:
        """Return a sentence with the calls of one solution."""
        solution = "; ".join(solution_text(_assignment_of(task)))
        return f"These calls solve the task: {solution}"

    def _score(self) -> float | None:
        return self._assignment.score(self._book, self._answer)

    def _run(self, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            return orjson.dumps(self._book.call(name, arguments)).decode()
        except CallError as error:
            return orjson.dumps({"error": str(error)}).decode()


def _assignment_of(task: Task) -> Assignment:
    """Return the task of the seed in a payload, or the task on the same book that the payload's objective defines."""
    seed, objective = int(task.payload["seed"]), objective_of(task.payload)
    return Assignment.make(seed) if objective is None else Assignment.referenced(seed, task.text, objective.reference)


def _calls_of(turn: ModelTurn) -> list[tuple[str, Mapping[str, Any], str]]:
    """Return name, arguments and id of each call: native ones, else the lines of JSON in the text."""
    if turn.calls:
        return [_native(call) for call in turn.calls]
    return [(name, arguments, "") for name, arguments in calls_in(turn.text)]


def _native(call: Call) -> tuple[str, Mapping[str, Any], str]:
    return call.tool, call.arguments, call.id


def solution_text(assignment: Assignment) -> Sequence[str]:
    """Return the turns of a solution: one line of JSON each."""
    return [orjson.dumps({"call": name, **arguments}).decode() for name, arguments in assignment.solution]
