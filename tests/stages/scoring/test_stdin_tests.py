"""The scorer `stdin_tests` on a real sandbox: right and wrong programs, and programs that fake their tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from treadle.agent.contract import Outcome, Task
from treadle.agent.dialects.base import Segment
from treadle.core.answers.score import Score
from treadle.environments.scorers.registry import SCORERS
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.stored_rollout import StoredRollout

ADD = "print(int(input()) + int(input()))"
SUMS = {"stdin": ["3\n4\n", "1\n1\n"], "expected_output": ["7\n", "2"]}
CALLS = {"inputs": [[3, 4], [1, 1]], "outputs": [7, 2], "fn_name": "add"}
CHECKS = {
    "import_prefix": "from typing import List\n",
    "test_code": "def check(candidate):\n    assert candidate(3, 4) == 7\n    assert candidate(1, 1) == 2\n",
    "entry_point": "Solution().add",
}
METHOD = "class Solution:\n    def add(self, a: List[int], b):\n        return a + b"
DEEP = """
class Solution:
    def depth(self, n: int) -> int:
        @cache
        def below(k):
            return 0 if k == 0 else 1 + below(k - 1)
        return below(n)
"""
BUFFERED = """
import atexit, io, sys
buffer, old = io.StringIO(), sys.stdout
sys.stdout = buffer
def end():
    old.write(buffer.getvalue()){end}
atexit.register(end)
print(int(input()) + int(input()))
"""
FAST = {"packages": (), "pool_size": 2}


@dataclass(frozen=True)
class Rollout:
    task: Task
    segments: tuple[tuple[str, str], ...]
    status: str = "answered"
    prediction: str = ""
    outcome: Outcome | None = None

    def stored(self) -> StoredRollout:
        segments = [Segment(kind, text, 0, 0) for kind, text in self.segments]
        return StoredRollout(self.status, False, segments, (), (), None, None)


@pytest.fixture(scope="module")
def scorers() -> Iterator[OpenScorers]:
    settings = {
        "tests": {},
        "share": {"reward": "share"},
        "quick": {"test_time_s": 0.5, "total_time_s": 0.8, "reward": "share"},
    }
    entries = {name: SCORERS.parse({"type": "stdin_tests", "sandbox": FAST, **keys}) for name, keys in settings.items()}
    with OpenScorers(entries) as opened:
        yield opened


def scored(scorers: OpenScorers, tests: object, program: str, *calls: str, scorer: str = "tests") -> Score:
    task = Task("q", "Add", scorer=scorer, payload={"tests": tests})
    answer = ("answer", f"<answer>\n```py\n{program}\n```\n</answer>")
    (score,) = scorers.scores([Rollout(task, (*(("code", f"<code>{call}</code>") for call in calls), answer))])
    return score


@pytest.mark.covers("planning-21")
@pytest.mark.parametrize(
    ("tests", "program", "score", "ending"),
    [
        (SUMS, ADD, 1, 0),
        (SUMS, "print(7)", 0, -2),
        (SUMS, "print(int(input()) + int(input())\n", 0, -4),
        (SUMS, "1/0", 0, -4),
        (SUMS, "import os\nos.abort()", 0, -1),
        (
            SUMS,
            "def main():\n    print(int(input()) + int(input()))\nif __name__ == '__main__':\n    main()\nmain",
            1,
            0,
        ),
        (CALLS, "def add(a, b):\n    return a + b", 1, 0),
        (CALLS, METHOD, 1, 0),
        (CALLS, "def add(a, b):\n    print('so far')\n    return 7", 0, -2),
        (CALLS, "def subtract(a, b): ...", 0, -4),
        (CALLS, "import os\nos._exit(0)", 0, -2),
        (CHECKS, METHOD, 1, 0),
        (CHECKS, METHOD.replace("+", "-"), 0, -4),
        (CHECKS, "raise SystemExit(0)", 0, -2),
        ({**CALLS, "inputs": [[3_000]], "outputs": [3_000], "fn_name": "depth"}, DEEP, 1, 0),
        (SUMS, BUFFERED.format(end=""), 1, 0),
        (SUMS, BUFFERED.format(end="; old.flush(); buffer.close(); old.close()"), 1, 0),
    ],
)
def test_program_scores_if_all_tests_pass(
    scorers: OpenScorers, tests: object, program: str, score: int, ending: int
) -> None:
    found = scored(scorers, tests, program, "```py\nprint(1)\n```")
    assert (found.score, found.correct, found.error) == (score, bool(score), None)
    assert found.parts == {"fenced": 1, "ending": ending}


@pytest.mark.covers("planning-21")
def test_one_call_without_a_fence_scores_nothing(scorers: OpenScorers) -> None:
    found = scored(scorers, SUMS, ADD, "```py\nprint(1)\n```", "print(2)")
    assert (found.score, found.correct, dict(found.parts)) == (0, False, {"fenced": 0})


@pytest.mark.covers("planning-21")
def test_endless_program_fails_all_tests_within_their_limits(scorers: OpenScorers) -> None:
    found = scored(scorers, {"stdin": [""] * 50, "expected_output": ["1"] * 50}, "while True: pass", scorer="quick")
    assert (found.score, found.parts["ending"], found.parts["passed"]) == (0, -3, 0)


def test_share_counts_the_tests_that_pass(scorers: OpenScorers) -> None:
    found = scored(scorers, SUMS, "print(7)", scorer="share")
    assert (found.score, found.correct, found.parts["passed"]) == (0.5, False, 0.5)


def test_task_without_usable_tests_has_no_verdict(scorers: OpenScorers) -> None:
    found = scored(scorers, {"question_id": "hidden"}, ADD)
    assert found.score is None
    assert "hidden" not in (found.error or "").replace("hidden tests", "")
