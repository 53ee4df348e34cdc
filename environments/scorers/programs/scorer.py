"""Score answers that are programs: calls of them must return the same as calls of a hidden reference program.

Paper: arXiv 2503.15478 (ColBench, backend programming). Rules: docs/guides/colbench.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import Field, PrivateAttr

from treadle.agent.contract import Task
from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.workspace.files import BadTask
from treadle.core.answers.score import Score
from treadle.core.chat_turns import well_formed
from treadle.core.config import digest_json
from treadle.core.errors import ConfigError
from treadle.core.gather import SharedResults
from treadle.environments.colbench.task import ProgramTask
from treadle.environments.scorers.base import Scorer
from treadle.environments.scorers.programs.answers import answer_of, find_legacy_program, find_program
from treadle.environments.scorers.programs.compare import same, same_legacy, shown
from treadle.environments.scorers.programs.runs import CallResult, run_calls
from treadle.environments.stored_rollout import StoredRollout

if TYPE_CHECKING:
    from treadle.agent.sandbox.pool import SandboxPool

_MAX_REFERENCES = 4096
_NO_ANSWER = CallResult(None, "there is no answer")
_BLOCKED = CallResult(None, "the answer has a text that the published program refuses")


class ProgramsScorer(Scorer):
    """Run the answer and the task's reference program, and compare what the calls of the tests return."""

    PAYLOAD: ClassVar[tuple[str, ...]] = ("reference", "tests")
    PARTS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    TIME_LIMIT_S: ClassVar[float | None] = None  # Each call has a limit, without waiting for a sandbox.

    type: str = "programs"
    """Hidden tests against a reference program."""
    profile: Literal["strict", "legacy"] = "strict"
    """`legacy` finds programs, runs and compares as the published program does, to compare with published figures."""
    test_time_s: float = Field(default=1.0, gt=0)
    """Time limit of one call of the answer, in seconds."""
    reference_time_s: float = Field(default=10.0, gt=0)
    """Time limit of one call of the reference, in seconds."""
    tolerance: float = Field(default=1e-9, ge=0, lt=1)
    """Relative and absolute difference up to which floating numbers are equal; not for `legacy`."""
    sandbox: SandboxSettings = SandboxSettings()
    """How programs are isolated, and the packages that they may import."""
    _pool: SandboxPool | None = PrivateAttr(default=None)
    _expected: SharedResults[list[CallResult]] = PrivateAttr(default_factory=lambda: SharedResults(_MAX_REFERENCES))

    @classmethod
    def check_payload(cls, payload: Mapping[str, object]) -> None:
        """See `Scorer`."""
        ProgramTask.of(payload)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the sandboxes. Raises SandboxError if programs cannot be isolated."""
        from treadle.agent.sandbox.pool import SandboxPool

        async with SandboxPool(self.sandbox) as pool:
            self._pool, self._expected = pool, SharedResults(_MAX_REFERENCES)
            try:
                yield
            finally:
                self._pool = None

    async def score(self, task: Task, rollout: StoredRollout) -> Score:
        """Return the share of calls that return the same as the reference; the answer is right if all do.

        Raises SandboxError, which leaves the rollout without a verdict, and BadTask; in the profile `strict` also if
        all calls of the reference fail.
        """
        hidden = ProgramTask.of(task.payload)
        calls = list(hidden.tests.values())
        expected = await self._results_of_reference(hidden.reference, calls)
        if self.profile == "strict" and all(one.value is None for one in expected):
            raise BadTask("every call of the reference program fails; check the task, and sandbox.packages")
        results = await self._results_of_answer(rollout, hidden.function, calls)
        passed = [self._is_passed(one, other) for one, other in zip(results, expected, strict=True)]
        share = sum(passed) / len(passed)
        return Score(share, all(passed), self.type, detail=_detail(hidden.tests, passed, expected, results))

    async def _results_of_answer(
        self, rollout: StoredRollout, function: str, calls: Sequence[str]
    ) -> Sequence[CallResult]:
        answer = answer_of(rollout)
        if answer is None:
            return [_NO_ANSWER] * len(calls)
        if self.profile == "legacy":
            program = find_legacy_program(answer)
            return [_BLOCKED] * len(calls) if program is None else await self._run(program, calls, self.test_time_s)
        found = find_program(answer, function)
        return await self._run(found.text, calls, self.test_time_s, function if found.is_bare else None)

    async def _results_of_reference(self, reference: str, calls: Sequence[str]) -> list[CallResult]:
        """Run the reference, once for all answers to a task; a run that failed is not kept."""
        key = digest_json([reference, *calls])
        return await self._expected.get(key, lambda: self._run(reference, calls, self.reference_time_s))

    async def _run(
        self, code: str, calls: Sequence[str], limit_s: float, function: str | None = None
    ) -> list[CallResult]:
        if self._pool is None:
            raise ConfigError("the scorer programs is not open")
        legacy, packages = self.profile == "legacy", self.sandbox.packages
        return await run_calls(self._pool, code, calls, limit_s, function, legacy=legacy, packages=packages)

    def _is_passed(self, result: CallResult, expected: CallResult) -> bool:
        if result.value is None or expected.value is None:
            return False
        if self.profile == "legacy":
            return expected.value != ["none"] and same_legacy(result.value, expected.value)
        return same(result.value, expected.value, self.tolerance)


def _detail(
    tests: Mapping[str, str], passed: Sequence[bool], expected: Sequence[CallResult], results: Sequence[CallResult]
) -> str:
    """Return the outcome of each test as JSON: name, call, passed, expected, got, error."""
    rows: list[dict[str, Any]] = []
    for (name, call), is_passed, wanted, result in zip(tests.items(), passed, expected, results, strict=True):
        error = result.error or (f"the reference failed: {wanted.error}" if wanted.error else "")
        texts = {"name": name, "call": call, "expected": shown(wanted.value), "got": shown(result.value)}
        safe = {key: None if text is None else well_formed(text) for key, text in texts.items()}
        rows.append({**safe, "passed": is_passed, "error": well_formed(error) or None})
    return orjson.dumps(rows).decode()
