"""A dialogue in memory: an environment that thinks of a number, and a model that guesses by halving."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import EpisodeOptions, Task
from treadle.agent.rollout import RolloutEngine
from treadle.agent.trajectory import Trajectory
from treadle.api import Done, Environment, ModelTurn, StoredRollout
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.custom.kind import CustomType
from treadle.environments.opening import limits_of
from treadle.environments.types import Resources


class Guess(Environment):
    """Guess a number that the environment thinks of."""

    top: int = 100
    """Largest number."""

    async def reset(self, task: Task) -> str:
        self.secret = task.payload["secret"]
        return f"I think of a number from 1 to {self.top}. Which one?"

    async def step(self, turn: ModelTurn) -> str | Done:
        found = re.findall(r"\d+", turn.text)
        if not found:
            return "Say a number."
        guess = int(found[-1])
        if guess == self.secret:
            return Done("Right.", reward=1.0)
        return "Higher." if guess < self.secret else "Lower."

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return max(0.0, 1.0 - 0.1 * (len(rollout.turns) - 1)) if rollout.status == "finished" else 0.0


class Leaving(Guess):
    """Ends the process, as libraries do that parse arguments."""

    @classmethod
    def open_shared(cls, settings: Any, resources: Resources) -> Any:
        sys.exit(0)

    async def close(self) -> None:
        sys.exit(0)


class Asking(Guess):
    """The same with a model in the role of a person."""

    roles = ("human",)


class Halving:
    """A model that finds the number; it reads the dialogue in its prompt, so it needs no state."""

    def __init__(self, tokenizer: ChatTokenizer | None, top: int = 100) -> None:
        self.requests: list[CompletionRequest] = []
        self._tokenizer = tokenizer
        self._top = top

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        return self.answer(request)

    def answer(self, request: CompletionRequest) -> Completion:
        """Return the next guess."""
        self.requests.append(request)
        prompt = request.prompt
        text = prompt if isinstance(prompt, str) else self._decoded(prompt)
        low, high = 1, self._top
        for guess, reply in re.findall(r"I say (\d+)\D+?(Higher|Lower)\.", text):
            low, high = (int(guess) + 1, high) if reply == "Higher" else (low, int(guess) - 1)
        said = f"I say {(low + high) // 2}"
        ids = None if self._tokenizer is None else (*self._tokenizer.encode(said), self._tokenizer.turn_end_ids[0])
        return Completion(said, ids, "stop", None, len(prompt), 4, "http://x/v1", 0.1, 0)

    def _decoded(self, ids: list[int]) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(ids)


async def play(
    environment: type[Environment],
    model: Any,
    tokenizer: ChatTokenizer | None,
    task: Task,
    *,
    cache: CallCache | None = None,
    options: EpisodeOptions | None = None,
    resources: Resources | None = None,
    renderer: ChatTokenizer | None = None,
    deadline: float = math.inf,
    **settings: Any,
) -> Trajectory:
    """Return one rollout of a task."""
    kind, kept = CustomType(environment), NullCache() if cache is None else cache
    parsed = kind.settings.model_validate({"type": "x:Guess", **settings})
    async with kind.open(parsed, resources or Resources()) as runtime:
        engine = RolloutEngine(
            model, tokenizer, Sampling(), limits_of(parsed), parsed.turn_dialect, renderer=renderer or tokenizer
        )
        return await engine.roll_out(runtime.episode(), task, seed=7, deadline=deadline, cache=kept, options=options)
