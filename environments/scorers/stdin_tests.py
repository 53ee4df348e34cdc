"""Score answers that are programs by running the tests of their tasks, each in a sandbox of its own.

Papers: arXiv 2508.13167, rewards of the code agent. Rules: docs/behaviour/scores.md, "Programs".
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PrivateAttr

from treadle.agent.contract import Task
from treadle.core.answers.extraction import ANSWER
from treadle.core.answers.score import Score
from treadle.core.errors import ConfigError
from treadle.environments.planning.tools.fences import PYTHON, find_fences, has_python_fence
from treadle.environments.planning.tools.settings import CodeSandboxSettings
from treadle.environments.scorers.base import Scorer
from treadle.environments.stored_rollout import StoredRollout

if TYPE_CHECKING:
    from treadle.agent.sandbox.pool import SandboxPool
    from treadle.agent.sandbox.process import ProgramResult
    from treadle.environments.scorers.program_tests import ProgramTest

CODE = "code"
"""Tool whose calls must be fenced."""
PASSED, KILLED, WRONG, LATE, FAILED = 0, -1, -2, -3, -4
"""Result codes of tests. An error of the sandbox itself has no code: it leaves the rollout without a verdict."""

_MARKER = re.compile(r"\A\s*<[A-Za-z_]+>|</[A-Za-z_]+>\s*\Z")


class ProgramSandboxSettings(CodeSandboxSettings):
    """Isolation and limits of one program that a test runs."""

    cpu_s: int | None = Field(default=None, ge=1)
    """CPU seconds of each process; unset: the wall-clock limit of the test, plus one."""


class StdinTestsScorer(Scorer):
    """Run the program of the answer against inputs and outputs, calls of a function, or assertions."""

    PARTS: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "passed": "tests passed: share of the task's tests; only if `reward` needs all of them to run",
            "fenced": "fenced: 1 if every call of `code` is in a Python block, else 0",
            "ending": "ending: of the first test that did not pass: -1 killed, -2 wrong, -3 too slow, -4 error; else 0",
        }
    )
    PAYLOAD: ClassVar[tuple[str, ...]] = ("tests",)
    TIME_LIMIT_S: ClassVar[float | None] = None  # Each test has a limit, without waiting for a sandbox.

    type: str = "stdin_tests"
    """Tests of a program."""
    reward: Literal["all", "share", "share_power_4"] = "all"
    """Score of a program. `all`: 1 if all tests pass, else 0; `share`: the share of tests that pass; `share_power_4`:
    its fourth power. A rollout is right only if all tests pass."""
    needs_fences: bool = True
    """Whether a rollout with a call of `code` that is not in a Python block scores 0."""
    test_time_s: float = Field(default=6.0, gt=0)
    """Time limit of one test, in seconds."""
    assertion_time_s: float = Field(default=2.0, gt=0)
    """Time limit of one assertion of `test_code`, in seconds."""
    total_time_s: float = Field(default=300.0, gt=0)
    """Time limit of all n tests together in seconds; (`test_time_s` + 1) n + 5 applies if it is smaller. Tests that are
    not finished by then fail."""
    sandbox: ProgramSandboxSettings = ProgramSandboxSettings()
    """How programs are isolated."""
    _pool: SandboxPool | None = PrivateAttr(default=None)

    @classmethod
    def check_payload(cls, payload: Mapping[str, object]) -> None:
        """See `Scorer`."""
        from treadle.environments.scorers.program_tests import read_tests

        read_tests(payload)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the sandboxes. Raises SandboxError if programs cannot be isolated."""
        from treadle.agent.sandbox.pool import SandboxPool

        async with SandboxPool(self.sandbox) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """Run the tests. Raises SandboxError, which leaves the rollout without a verdict, and BadTask."""
        from treadle.environments.scorers.program_tests import read_tests

        tests = read_tests(task.payload)
        is_fenced = calls_are_fenced(rollout)
        parts = {"fenced": float(is_fenced)}
        solution = answered_program(rollout)
        if solution is None or (self.needs_fences and not is_fenced):
            return Score(0.0, False, self.type, parts=parts)
        endings = await self._endings(tests, solution)
        parts["ending"] = float(next(filter(None, endings), PASSED))
        share = endings.count(PASSED) / len(tests)
        if self.reward == "all":
            return Score(float(share == 1), share == 1, self.type, parts=parts)
        score = share if self.reward == "share" else share**4
        return Score(score, share == 1, self.type, parts=parts | {"passed": share})

    async def _endings(self, tests: list[ProgramTest], solution: str) -> list[int]:
        """Return the result code of each test in order; with `reward = "all"`, stop after the first failure."""
        endings: list[int] = []
        remaining_s = min((self.test_time_s + 1) * len(tests) + 5, self.total_time_s)
        for test in tests:
            seconds, ending = await self._ending(test, solution, remaining_s)
            remaining_s -= seconds
            endings.append(ending)
            if ending != PASSED and self.reward == "all":
                break
        return endings

    async def _ending(self, test: ProgramTest, solution: str, remaining_s: float) -> tuple[float, int]:
        if self._pool is None:
            raise ConfigError("the scorer stdin_tests is not open")
        if remaining_s <= 0:
            return 0.0, LATE
        limit_s = min(self.assertion_time_s if test.is_assertion else self.test_time_s, remaining_s)
        result = await self._pool.run(test.program(solution), time_limit_s=limit_s)
        return result.seconds, _code(test, result)


def _code(test: ProgramTest, result: ProgramResult) -> int:
    if result.timed_out or result.exit_code == 128 + signal.SIGXCPU:
        return LATE
    if result.exit_code is None or result.exit_code > 128:
        return KILLED
    if result.exit_code:
        return FAILED
    return PASSED if test.is_passed(result.stdout) else WRONG


def answered_program(rollout: StoredRollout) -> str | None:
    """Return the last Python block of the last answer; None without one."""
    answers = [part.text for part in rollout.segments if part.kind == ANSWER]
    if not answers:
        return None
    fences = find_fences(_MARKER.sub("\n", answers[-1]))
    programs = [fence.text for fence in fences if fence.language in PYTHON and fence.is_closed]
    return programs[-1] if programs else None


def calls_are_fenced(rollout: StoredRollout) -> bool:
    """Return whether every call of `code`, executed or not, is in a Python block."""
    written = [_MARKER.sub("\n", part.text) for part in rollout.segments if part.kind == CODE]
    written += [call.argument for call in rollout.calls if call.tool == CODE]
    return all(map(has_python_fence, written))
