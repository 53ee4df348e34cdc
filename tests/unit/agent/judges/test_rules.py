"""Verdicts by rules alone, and comparison of answers by algebra."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from support.rollouts.judge_bench import CASE, asked, judged
from support.sandbox.memories import Remembering

from treadle.agent.call_cache import NullCache
from treadle.agent.judges.answer import AnswerJudge
from treadle.agent.judges.cases import Verdict
from treadle.agent.judges.rules import RuleJudge, SymbolicLimits
from treadle.core.answers import symbolic
from treadle.core.answers.math_equal import SymbolicVerdict
from treadle.core.errors import ConfigError, DeadlineExceeded, EngineError


@pytest.mark.parametrize(
    ("domain", "answers", "choices", "prediction", "correct", "method"),
    [
        ("qa", ("red green blue black",), (), "red green blue black white", True, "qa_f1"),
        ("qa", ("Barack Obama",), (), "Barack Hussein Obama", False, "qa_f1"),
        ("qa", ("Ann", "Ann Reed"), (), "the ANN reed", True, "qa_em"),
        ("choice", ("B",), ("x", "y"), "y", True, "choice"),
        ("choice", ("B",), ("x", "y"), "A", False, "choice"),
        ("math", ("B",), ("x", "y"), "A", False, "choice"),
        ("qa", ("Ann " * 300,), (), "Ann " * 300, True, "qa_em"),
    ],
)
@pytest.mark.covers("flywheel-20")
async def test_qa_and_choice_are_decided_by_rules_alone(
    domain: str, answers: tuple[str, ...], choices: tuple[str, ...], prediction: str, correct: bool, method: str
) -> None:
    case = replace(CASE, domain=domain, answers=answers, choices=choices, prediction=prediction)
    async with asked("Correct") as (model, server):
        verdict = await judged(AnswerJudge(model=model), case)
        assert (verdict.correct, verdict.method, server.requests) == (correct, method, [])


async def test_unequal_answer_is_wrong_without_a_model() -> None:
    verdict = await judged(AnswerJudge(None), CASE)
    assert (verdict.correct, verdict.score, verdict.method) == (False, 0.0, "math_rules")


async def test_unknown_domain_is_an_error() -> None:
    with pytest.raises(ConfigError):
        await judged(AnswerJudge(None), replace(CASE, domain="poems"))


class Algebra:
    """Replaces the symbolic checker; `entered` counts, `go` holds comparisons back."""

    reply: SymbolicVerdict | EngineError = SymbolicVerdict(True)
    entered = 0
    at_once = 0
    most_at_once = 0
    closed = 0
    go = threading.Event()
    lock = threading.Lock()

    def __init__(self, *, workers: int, limit_s: float, memory_mib: int) -> None: ...

    def __enter__(self) -> Algebra:
        return self

    def __exit__(self, *exc: object) -> None:
        type(self).closed += 1

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        cls = type(self)
        with cls.lock:
            cls.entered += 1
            cls.at_once += 1
            cls.most_at_once = max(cls.most_at_once, cls.at_once)
        assert cls.go.wait(10), "the event loop does not get on while answers are compared"
        with cls.lock:
            cls.at_once -= 1
        if isinstance(cls.reply, EngineError):
            raise cls.reply
        return cls.reply


@pytest.fixture
def algebra(monkeypatch: pytest.MonkeyPatch) -> type[Algebra]:
    kind = type("OneAlgebra", (Algebra,), {"go": threading.Event(), "lock": threading.Lock()})
    monkeypatch.setattr(symbolic, "SymbolicChecker", kind)
    return kind


SUM = replace(CASE, answers=("x+1",), prediction="1+x")


async def test_algebra_runs_outside_the_event_loop_with_bounded_workers(algebra: type[Algebra]) -> None:
    async with RuleJudge(SymbolicLimits(workers=2)) as judge:
        cases = [replace(SUM, prediction=f"{n}+x") for n in range(1, 7)]
        tasks = [asyncio.ensure_future(judge.verdict(case, NullCache())) for case in cases]
        while algebra.entered < 2:
            await asyncio.sleep(0)
        algebra.go.set()
        verdicts = await asyncio.gather(*tasks)
    assert [verdict.method for verdict in verdicts] == ["math_symbolic"] * 6
    assert (algebra.entered, algebra.most_at_once, algebra.closed) == (6, 2, 1)


async def test_algebra_verdicts_are_cached(algebra: type[Algebra]) -> None:
    algebra.go.set()
    cache = Remembering()
    async with RuleJudge() as judge:
        first = await judge.verdict(SUM, cache)
        algebra.reply = SymbolicVerdict(False, "time")
        assert await judge.verdict(SUM, cache) == first == Verdict(True, 1.0, "math_symbolic")
        assert (await judge.verdict(SUM, NullCache())).method == "math_symbolic_limit"
    assert algebra.entered == 2


async def test_algebra_over_its_deadline_is_abandoned(algebra: type[Algebra]) -> None:
    cache = Remembering()
    async with RuleJudge() as judge:
        with pytest.raises(DeadlineExceeded, match="the time limit was reached before the answer was compared"):
            await judge.verdict(replace(SUM, deadline=asyncio.get_running_loop().time()), cache)
        assert cache.units == {}
        algebra.go.set()
        assert (await judge.verdict(SUM, cache)).method == "math_symbolic"


async def test_broken_algebra_leaves_the_verdict_unknown_and_is_not_cached(algebra: type[Algebra]) -> None:
    algebra.go.set()
    algebra.reply = EngineError("it broke")
    cache = Remembering()
    async with RuleJudge() as judge:
        assert await judge.verdict(SUM, cache) == Verdict(None, None, "math_symbolic", error="it broke")
        assert cache.units == {}


async def test_model_decides_if_algebra_breaks(algebra: type[Algebra]) -> None:
    algebra.go.set()
    algebra.reply = EngineError("it broke")
    async with asked("Correct") as (model, _):
        assert (await judged(AnswerJudge(model=model), SUM)).method == "model"


async def test_closing_starts_no_further_comparison(algebra: type[Algebra]) -> None:
    judge = await RuleJudge().__aenter__()
    algebra.reply = SymbolicVerdict(False)
    many = replace(SUM, answers=tuple(f"x+{n}" for n in range(10)))
    task = asyncio.ensure_future(judge.verdict(many, NullCache()))
    while not algebra.entered:
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(judge.__aexit__())
    while not (judge._checker and judge._checker.is_closing):
        await asyncio.sleep(0)
    algebra.go.set()
    await closing
    assert (await task).error == "the judge was closed while it compared answers"
    assert algebra.entered == 1


async def test_real_algebra_finds_sums_equal() -> None:
    async with RuleJudge() as judge:
        assert await judge.verdict(SUM, NullCache()) == Verdict(True, 1.0, "math_symbolic")
