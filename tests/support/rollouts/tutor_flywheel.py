"""The flywheel's real round loop and operators with the tutor in every role, without a network: stub tools, no journal.

`python -m support.rollouts.tutor_flywheel 2000` (in tests/) prints the results for so many questions with the noisy
persona.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from support.rollouts.tutor_rollout import run_python, run_search

from treadle.agent.call_cache import NullCache
from treadle.agent.judges.answer import AnswerJudge
from treadle.agent.model_types import RolloutLimits
from treadle.agent.role import RoleModel
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.chat import ChatTokenizer
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.datagen.operators import load_operators
from treadle.datagen.pools.context import PoolContext
from treadle.datagen.pools.evolution import Evolution
from treadle.datagen.pools.pool import PoolEntry
from treadle.datagen.pools.settings import DEFAULT_OPERATORS, PoolOptions
from treadle.datagen.prompts import PromptSet
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.completion import ReplyWriter
from treadle.demo.tutor.settings import MODEL, ErrorRates, TutorSettings
from treadle.demo.world_files import write_world
from treadle.environments.question.runtime import QuestionRuntime
from treadle.environments.question.settings import QuestionSettings

Row = dict[str, Any]
_MATH = ("world-compute", "world-arithmetic")


class TutorModel:
    """The tutor's writer as a model; everything goes out as text."""

    def __init__(self, writer: ReplyWriter) -> None:
        self._writer = writer

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        body = {"prompt": request.prompt, "stop": list(request.stop), "include_stop_str_in_output": True}
        return self._answer(body, request.seed, chat=False)

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        *,
        seed: int,
        session: str,
        deadline: float,
        stop: Sequence[str] = (),
    ) -> Completion:
        return self._answer({"messages": list(messages)}, seed, chat=True)

    def _answer(self, body: Row, seed: int, *, chat: bool) -> Completion:
        written = self._writer.write({"model": MODEL, "max_tokens": 4000, "seed": seed, **body}, chat=chat)
        return Completion(written.text, None, "stop", None, 0, 0, "http://tutor/v1", 0.0, 0)


@dataclass
class Shelf:
    """Search and Python over a written world, with the statuses of the real tools."""

    name: str
    texts: Mapping[str, str]

    async def __aenter__(self) -> Shelf:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        if not argument:
            return ToolOutcome("invalid", "invalid query: it is empty")
        if self.name == "search":
            found = run_search(self.texts, argument)
            return ToolOutcome("empty" if found == "no results" else "ok", found)
        printed = run_python(argument)
        return ToolOutcome("error" if "Error" in printed else "ok", printed)


@dataclass
class Flywheel:
    """A world, a tutor, and the context of the stage `pools` around them."""

    rows: list[Row]
    pool_context: PoolContext

    @classmethod
    def make(
        cls,
        folder: Path,
        questions: int,
        *,
        rates: ErrorRates | None = None,
        operators: Sequence[str] = DEFAULT_OPERATORS,
        rounds: int = 3,
    ) -> Flywheel:
        documents = max(1000, questions * 5)
        made = write_world(folder, documents=documents, questions=questions, heldout_questions=1, tiers=(0, 1), seed=3)
        texts = {row["title"]: row["text"] for row in map(orjson.loads, made.corpus.read_bytes().splitlines())}
        rows = [_row(line) for line in made.questions.read_bytes().splitlines()[:questions]]
        settings = TutorSettings(persona="noisy", rates=rates or ErrorRates())
        model = TutorModel(ReplyWriter(settings, ChatTokenizer.load(write_byte_tokenizer(folder))))
        environment, sampling = QuestionSettings(), Sampling(max_tokens=512)
        fresh, more = (
            RolloutEngine(model, None, sampling, RolloutLimits(environment.turn_limit(extra)), environment.turn_dialect)
            for extra in (0, environment.continuation_calls)
        )
        pool_context = PoolContext(
            options=PoolOptions(operators=tuple(operators), rounds=rounds),
            environment=environment,
            fresh=fresh,
            continuing=more,
            runtime=QuestionRuntime(environment, {name: Shelf(name, texts) for name in ("search", "python")}),
            roles={name: RoleModel(name, "tutor", model, sampling) for name in ("critic", "refiner")},
            judge=AnswerJudge(symbolic=None, model=RoleModel("judge", "tutor", model, sampling)),
            operators=load_operators(operators),
            prompts=PromptSet(),
            policy_name="tutor",
            seed=1,
        )
        return cls(rows, pool_context)

    async def evolve(self) -> list[tuple[Row, Evolution]]:
        """All questions through all rounds."""
        done = []
        async with self.pool_context.judge:
            for row in self.rows:
                evolution = Evolution(self.pool_context, row, NullCache())
                await evolution.run()
                done.append((row, evolution))
        return done


def _row(line: bytes) -> Row:
    row = orjson.loads(line)
    domain = "math" if row["source"] in _MATH else "qa"
    return {
        **row,
        "question_key": row["question"],
        "choices": [],
        "dataset": row["source"],
        "domain": domain,
        "answers": row["answer"],
    }


def patterns(row: Row, entry: PoolEntry) -> set[str]:
    """Return the persona's error patterns in a trajectory, from its ledger and verdict, not by the tutor's rules."""
    calls = entry.trajectory.calls
    good = {(call.tool, call.argument) for call in calls if call.status == "ok"}
    found = {"broken"} if any(call.status != "ok" for call in calls) else set()
    if len(good) < sum(call.status == "ok" for call in calls):
        found.add("redundant")
    if not entry.correct:
        found.add("early" if len(good) < row["num_calls"] else "wrong")
    return found


@dataclass
class Tally:
    """Results of the operators: (operator, pattern of the parent) -> applied, and repaired."""

    applied: Counter[tuple[str, str]]
    repaired: Counter[tuple[str, str]]
    outcomes: Counter[tuple[str, str]]
    num_accepted: int = 0

    def rate(self, operator: str, pattern: str) -> float:
        """Share of the applications to parents with a pattern whose trajectory is right and without it."""
        return self.repaired[operator, pattern] / max(1, self.applied[operator, pattern])


def tally(done: Sequence[tuple[Row, Evolution]]) -> Tally:
    """Count repairs; a question is accepted with a correct trajectory all of whose calls succeeded."""
    out = Tally(Counter(), Counter(), Counter())
    for row, evolution in done:
        by_key = {entry.key: entry for entry in evolution.pool}
        out.num_accepted += any(not patterns(row, entry) - {"redundant"} for entry in evolution.pool)
        for event in evolution.events:
            out.outcomes[event.operator, event.reason or event.outcome] += 1
            if event.parent is None:
                continue
            child = by_key.get(event.rollout_key or "")
            for pattern in patterns(row, event.parent) or {"none"}:
                out.applied[event.operator, pattern] += 1
                out.repaired[event.operator, pattern] += (
                    child is not None and child.correct and pattern not in patterns(row, child)
                )
    return out


def main() -> None:
    """Print rates for a number of questions."""
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(Flywheel.make(Path(folder), int(sys.argv[1])).evolve())
    out = tally(done)
    print(f"{out.num_accepted} of {len(done)} questions with an accepted trajectory")
    for operator, pattern in sorted(out.applied):
        number = out.applied[operator, pattern]
        print(f"{operator:15} {pattern:10} {number:6} {out.rate(operator, pattern):.3f}")
    for key, number in sorted(out.outcomes.items()):
        print(*key, number)


if __name__ == "__main__":
    main()
