"""One trajectory of a group in the making: its rollout, what was sampled where, and the time that its tools have left.

How long a trajectory waits for the model, for its siblings or for a free sandbox says how busy the machine is. None of
that may reach a reward, so only what its calls took counts; an engine that hangs is ended by who supervises it.
Normative: docs/behaviour/group-rollouts.md, part "Infrastructure and time".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from treadle.agent.environment import CallRecord, Environment, Observation, Question
from treadle.agent.rollout import Model, Rollout
from treadle.agent.transcript import ORIGIN_SAMPLED
from treadle.core.errors import DeadlineExceeded
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.rl.branching import turn_entropy


class TimedEnvironment:
    """An environment whose calls use up a trajectory's time, as long as each of them took by its record.

    Attributes:
        time_left_s: What is left of it.
    """

    def __init__(self, environment: Environment, time_left_s: float) -> None:
        self.time_left_s = time_left_s
        self._environment = environment

    async def reset(self, question: Question, history: Sequence[CallRecord] = ()) -> list[dict[str, str]]:
        """See `Environment`."""
        return await self._environment.reset(question, history)

    async def step(
        self,
        text: str,
        *,
        turn: int,
        deadline: float,
        log: Sequence[str] = (),
        seed: int = 0,
        budget_s: float | None = None,
    ) -> Observation:
        """See `Environment`; calls run no longer than is left, and those that cannot tell do not wait longer either."""
        left_s = self.time_left_s if budget_s is None else min(budget_s, self.time_left_s)
        deadline = min(deadline, asyncio.get_running_loop().time() + left_s)
        observation = await self._environment.step(
            text, turn=turn, deadline=deadline, log=log, seed=seed, budget_s=left_s
        )
        self.time_left_s -= sum(call.seconds for call in observation.calls)
        return observation

    def replay(self, observation: Observation) -> None:
        """See `Environment`."""
        self._environment.replay(observation)

    async def close(self) -> None:
        """See `Environment`."""
        await self._environment.close()


class Recorder:
    """The model of one trajectory, which notes what was sampled where; rollouts elsewhere have no use for that."""

    def __init__(self, model: Model, environment: TimedEnvironment, inherited: Sequence[float]) -> None:
        """`inherited` are log-probabilities of the ids that the trajectory began with, if it branched off."""
        self._model = model
        self._environment = environment
        self._inherited = inherited
        self._num_prompt_ids: int | None = None
        self._answers: list[tuple[int, Completion]] = []

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """One completion; raises DeadlineExceeded where calls have used up the trajectory's time."""
        if self._environment.time_left_s <= 0:
            raise DeadlineExceeded("the rollout's time is up")
        if self._num_prompt_ids is None:
            self._num_prompt_ids = len(request.prompt) - len(self._inherited)
        start = len(request.prompt) - self._num_prompt_ids
        completion = await self._model.complete(request, session=session, deadline=deadline)
        self._answers.append((start, completion))
        return completion

    @property
    def last(self) -> Completion | None:
        """The newest answer."""
        return self._answers[-1][1] if self._answers else None

    def logprobs(self, ids: Sequence[int], origins: Sequence[int]) -> list[float]:
        """For each id of the assistant's turn its log-probability, 0.0 where it was not sampled."""
        values = [*self._inherited, *[0.0] * (len(ids) - len(self._inherited))]
        for start, completion in self._answers:
            for offset, logprob in enumerate(completion.logprobs or ()):
                if start + offset < len(ids) and origins[start + offset] == ORIGIN_SAMPLED:
                    values[start + offset] = logprob
        return values

    def end_of_turn(self, num_kept: int, eos_ids: Collection[int]) -> tuple[int, float] | None:
        """The end-of-turn id that follows the `num_kept` ids of the assistant's turn, if the model sampled one."""
        if not self._answers:
            return None
        start, completion = self._answers[-1]
        ids, at = completion.token_ids or (), num_kept - start
        if at >= len(ids) or ids[at] not in eos_ids:
            return None
        return ids[at], completion.logprobs[at] if completion.logprobs else 0.0


@dataclass(slots=True, kw_only=True)
class Session:
    """One trajectory in the making. `baseline` is the entropy of its first turn, or of that of its parent."""

    number: int
    parent: int | None
    depth: int
    seed: int
    environment: TimedEnvironment
    recorder: Recorder
    rollout: Rollout
    baseline: float | None
    rise: float = 0.0
    num_rounds: int = 0
    goes_on: bool = True

    async def advance(self) -> None:
        """Take one turn."""
        self.goes_on = await self.rollout.advance()
        self.num_rounds += 1

    async def play_out(self) -> None:
        """Take all turns that are left."""
        while self.goes_on:
            await self.advance()

    def measure(self, vocab_size: int) -> None:
        """Note by how much the entropy of the newest turn is above the baseline."""
        assert self.recorder.last is not None
        entropy = turn_entropy(self.recorder.last, vocab_size)
        if self.baseline is None:
            self.baseline = entropy
        self.rise = entropy - self.baseline
