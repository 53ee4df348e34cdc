"""The scorer `programs` on a real sandbox: both profiles, other interpreters, and programs that attack it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.sweep import examples, sampled

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.score import Score
from treadle.environments.scorers.programs.runs import run_calls
from treadle.environments.scorers.registry import SCORERS
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.stored_rollout import StoredRollout

FAST = {"packages": (), "pool_size": 2}
PROFILES: dict[str, dict[str, Any]] = {
    "strict": {"test_time_s": 0.3},
    "legacy": {"profile": "legacy", "test_time_s": 0.3},
}
"""Both profiles; a program that never ends takes its whole time for every test."""
DOUBLE = "def f(x):\n    return 2 * x"
TESTS = {"one": "f(1)", "two": "f([1])"}
TOP_IMPORT = "import math\ndef f(x):\n    return math.sqrt(x)"
HELPER = "def g(x):\n    return x + 1\ndef f(x):\n    return g(x)"
RECURSION = "def f(x):\n    return 1 if x < 1 else x * f(x - 1)"
INNER_IMPORT = "def f(x):\n    import math\n    return math.sqrt(x)"
LOOP = "def f(x):\n    while True:\n        pass"


class Finished:
    """A finished dialogue, as scoring reads it."""

    prediction, outcome = "", None

    def __init__(self, task: Task, answer: str | None, status: str = "answered") -> None:
        self.task, self.answer, self.status = task, answer, status

    def stored(self) -> StoredRollout:
        parts = [] if self.answer is None else [Segment("answer", f"I WANT TO ANSWER:{self.answer}", 0, 0)]
        return StoredRollout.of(Trajectory(self.status, "", parts, [], [], 1))


def opened(**settings: dict[str, Any]) -> OpenScorers:
    return OpenScorers(
        {name: SCORERS.parse({"type": "programs", "sandbox": FAST, **one}) for name, one in settings.items()}
    )


@pytest.fixture(scope="module")
def scorers() -> Iterator[OpenScorers]:
    with opened(**PROFILES) as found:
        yield found


def task_of(reference: str, tests: dict[str, str], scorer: str = "strict") -> Task:
    return Task("q", "Write f.", scorer=scorer, payload={"reference": reference, "tests": tests, "extra": {}})


def scored(
    scorers: OpenScorers,
    answers: Sequence[str | None],
    reference: str = DOUBLE,
    tests: dict[str, str] = TESTS,
    scorer: str = "strict",
) -> list[Score]:
    task = task_of(reference, tests, scorer)
    return scorers.scores([Finished(task, answer) for answer in answers])


def test_share_of_equal_results_counts_and_each_test_is_told(scorers: OpenScorers) -> None:
    right, half, wrong, none = scored(scorers, [DOUBLE, "def f(x):\n    return x + x if x == 1 else x", "oops(", None])
    assert [(one.score, one.correct) for one in (right, half, wrong, none)] == [
        (1, True), (0.5, False), (0, False), (0, False),
    ]  # fmt: skip
    assert json.loads(half.detail) == [
        {"name": "one", "call": "f(1)", "passed": True, "expected": "2", "got": "2", "error": None},
        {"name": "two", "call": "f([1])", "passed": False, "expected": "[1, 1]", "got": "[1]", "error": None},
    ]
    assert {row["error"] for row in json.loads(none.detail)} == {"there is no answer"}
    assert all(row["error"].startswith("SyntaxError") for row in json.loads(wrong.detail))


def test_prose_around_bare_code_costs_the_published_profile_alone(scorers: OpenScorers) -> None:
    answers = [f"It doubles:\n\n{DOUBLE}\n\nNote: this returns 2x.", f"{DOUBLE}\n```\nDone."]
    for scorer, expected in (("strict", [1, 1]), ("legacy", [0, 0])):
        assert [one.score for one in scored(scorers, answers, scorer=scorer)] == expected, scorer
    equal = "from collections import deque\ndef f(x):\n    return deque([range(x, 6, 2)]) if x == 1 else 4.0"
    other = equal.replace("6, 2", "7, 2").replace("4.0", "2 + 2")
    assert scored(scorers, [other], equal)[0].score == 1, "both ranges are 1, 3 and 5"


@pytest.mark.covers("sweet-12")
def test_strict_profile_knows_the_whole_program_and_legacy_only_the_function(scorers: OpenScorers) -> None:
    programs = (TOP_IMPORT, HELPER, RECURSION, INNER_IMPORT)
    for scorer, expected in (("strict", [1, 1, 1, 1]), ("legacy", [0, 0, 0, 1])):
        found = [scored(scorers, [one], one, {"1": "f(4)", "2": "f(3)"}, scorer)[0].score for one in programs]
        assert found == expected, scorer


def other_interpreters() -> list[str]:
    """Interpreters of the versions that the specification names, as far as this machine has them."""
    found = [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.1[23]*/bin/python"))]
    found += [path for version in ("3.12", "3.13") if (path := shutil.which(f"python{version}"))]
    return [path for path in found if "shims" not in path]  # shims of pyenv name versions that are not installed


@pytest.mark.covers("sweet-13")
@pytest.mark.parametrize("interpreter", [None, *other_interpreters()], ids=lambda one: one or "own")
def test_loops_and_exits_cost_their_own_test_alone(interpreter: str | None) -> None:
    sandbox = {**FAST, "interpreter": interpreter}
    exits = "def f(x):\n    if x == 1:\n        raise SystemExit\n    return 2 * x"
    with opened(**{name: {**keys, "sandbox": sandbox} for name, keys in PROFILES.items()}) as scorers:
        for scorer in ("strict", "legacy"):
            loop, exit_, right = scored(scorers, [LOOP, exits, DOUBLE], scorer=scorer)
            assert [one.score for one in (loop, exit_, right)] == [0, 0.5, 1]
            assert [row["error"] for row in json.loads(loop.detail)] == ["time limit exceeded"] * 2
            assert json.loads(exit_.detail)[0]["error"].startswith("SystemExit")
        for scorer, expected in (("strict", [1, 1, 1, 1]), ("legacy", [0, 0, 0, 1])):
            programs = (TOP_IMPORT, HELPER, RECURSION, INNER_IMPORT)
            assert [scored(scorers, [one], one, {"1": "f(4)"}, scorer)[0].score for one in programs] == expected


@pytest.mark.covers("sweet-13")
async def test_two_endless_calls_take_the_time_of_two_tests() -> None:
    seconds = []

    class Pool:
        """Pool that keeps the time limit it is given."""

        async def run(self, program: object, *, time_limit_s: float) -> Any:
            seconds.append(time_limit_s)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await run_calls(Pool(), LOOP, ["f(1)", "f(2)"], 1.0, legacy=False, packages=())  # type: ignore[arg-type]
    assert seconds == [2 * 1.5 + 5.0 + 5.0], "one second each, with time to start, and for stalls of the machine"


def original(reference: str, answer: str, tests: dict[str, str]) -> float:
    """Return the reward by the rules of the published program, whose globals and locals are separate here."""
    blocked = ("import os", "from os", "import sys", "from sys", "sudo", "transformers", "exit(", "quit(", "argparse")
    if any(text in answer for text in blocked):
        return 0.0
    code = answer
    if "```python" in answer:
        code = answer.split("```python")[1].split("```")[0]
    elif "```" in answer:
        code = answer.split("```")[1].split("```")[0]

    def result(program: str, call: str) -> Any:
        scope: dict[str, Any] = {}
        names: dict[str, Any] = {}
        try:
            exec(program, scope, names)
            return eval(call, scope, names)
        except Exception:  # noqa: BLE001 - programs raise anything
            return None

    passed = 0
    for call in tests.values():
        wanted, got = result(reference, call), result(code, call)
        try:
            passed += bool(got == wanted and wanted is not None)
        except ValueError:
            continue
    return passed / len(tests)


REFERENCES = (DOUBLE, "def f(x):\n    return x", "def f(x):\n    return {x: [x]}", TOP_IMPORT, RECURSION)


@pytest.mark.parametrize("reference", sampled(REFERENCES, (DOUBLE, TOP_IMPORT)), ids=REFERENCES.index)
def test_legacy_rewards_are_those_of_the_published_program(scorers: OpenScorers, reference: str) -> None:
    tests = {
        str(place): f"f({value})" for place, value in enumerate(("1", "0.1", "True", "[1, 2]", "'ab'", "(1,)", "None"))
    }
    answers = (
        *REFERENCES,
        f"```python\n{DOUBLE}\n```",
        f"Sure:\n```\n{DOUBLE}\n```\n```python\nf = None\n```",
        f"```py\n{DOUBLE}\n```",
        f"{DOUBLE}  # import os",
        "def f(x):\n    return x + x if x else None",
        "def f(x):\n    return float(x) * 2",
        "def f(x):\n    return [x, x][0]",
        "def f(x): return print(x)",
        "f = lambda x: x * 2",
        "f = abs",
        "I do not know.",
        "",
    )
    found = [one.score for one in scored(scorers, answers, reference, tests, "legacy")]
    assert found == [original(reference, answer, tests) for answer in answers]
    assert len({original(DOUBLE, answer, tests) for answer in answers}) >= 3


def test_none_and_failures_of_the_reference(scorers: OpenScorers) -> None:
    nothing = "def f(x):\n    return None"
    assert [scored(scorers, [nothing], nothing, scorer=one)[0].score for one in PROFILES] == [1, 0]
    partly = "def f(x):\n    return 1 / (x - 1)"
    (found,) = scored(scorers, [partly], partly, {"1": "f(1)", "2": "f(2)"})
    assert found.score == 0.5 and json.loads(found.detail)[0]["error"].startswith("ZeroDivisionError")
    (told,) = scored(scorers, [DOUBLE], partly, {"1": "f(1)", "2": "f(2)"})
    assert json.loads(told.detail)[0]["error"].startswith("the reference failed: ZeroDivisionError")
    (broken,) = scored(scorers, [DOUBLE], "def f(x) return", scorer="strict")
    assert broken.score is None and "every call of the reference program fails" in (broken.error or "")
    assert scored(scorers, [DOUBLE], "def f(x) return", scorer="legacy")[0].score == 0


def test_reference_runs_once_for_all_answers_to_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    async def counted(pool: Any, code: str, *arguments: Any, **keys: Any) -> Any:
        runs.append(code)
        return await run_calls(pool, code, *arguments, **keys)

    monkeypatch.setattr("treadle.environments.scorers.programs.scorer.run_calls", counted)
    with opened(strict={}) as scorers:
        scored(scorers, [LOOP.replace("while True", "if x"), HELPER, "x"])
    assert runs.count(DOUBLE) == 1 and len(runs) == 4


ATTACKS = {
    "always equal": "class A:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(x): return A()",
    "equal number": "class A(int):\n    def __eq__(self, other): return True\ndef f(x): return A(3)",
    "equal list": "class A(list):\n    def __eq__(self, other): return True\ndef f(x): return A()",
    "os._exit": "import os\ndef f(x): os._exit(0)",
    "os._exit at once": "import os\nos._exit(0)",
    "abort": "import os\ndef f(x): os.abort()",
    "kill all": "import os, signal\ndef f(x): os.kill(-1, signal.SIGKILL)",
    "kill the parent": "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGKILL)",
    "fork bomb": "import os\ndef f(x):\n    while True: os.fork()",
    "fork bomb of threads": "import threading as t\ndef f(x):\n    while True: t.Thread(target=f, args=(x,)).start()",
    "10 GB": "def f(x): return len(bytearray(10 * 2**30)) and 2 * x",
    "10 GB in pieces": "def f(x):\n    held = []\n    while True: held.append(bytearray(2**24))",
    "endless output": "import os\ndef f(x):\n    while True: os.write(1, b'x' * 65536)",
    "endless stderr": "import sys\ndef f(x):\n    while True: sys.__stderr__.write('x' * 65536)",
    "deep recursion": "def f(x): return f(x)",
    "deep value": "def f(x):\n    value = []\n    for _ in range(10**6): value = [value]\n    return value",
    "huge value": "def f(x): return 'x' * 10**8",
    "huge number": "def f(x): return 10**10**7",
    "sleep": "import time\ndef f(x): time.sleep(1e9)",
    "blocked signals": "import signal as s\ndef f(x):\n    s.signal(s.SIGALRM, s.SIG_IGN)\n    while True: pass",
    "swallowed errors": (
        "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass"
    ),
    "grandchild": "import os, time\ndef f(x):\n    if os.fork() == 0: time.sleep(1e9)\n    os._exit(0)",
    "forged results": (
        "import os\ndef f(x):\n"
        "    for fd in range(3, 64):\n"
        "        for n in range(2):\n"
        '            try: os.write(fd, b\'\\ntreadle-result:%d {"value": ["none"]}\\n\' % n)\n'
        "            except OSError: pass\n"
    ),
    "reads frames": (
        "import gc, sys\ndef f(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for value in frame.f_locals.values():\n"
        "            if isinstance(value, dict) and 'expected' in value: return value['expected']\n"
        "        frame = frame.f_back\n"
        "    for one in gc.get_objects():\n"
        "        if isinstance(one, dict) and 'reference' in one: return one['reference']\n"
    ),
    "reads processes": (
        "import os\ndef f(x):\n"
        "    for name in os.listdir('/proc'):\n"
        "        for file in ('environ', 'cmdline', 'maps', 'mem'):\n"
        "            try: data = open(f'/proc/{name}/{file}', 'rb').read(100000)\n"
        "            except Exception: continue\n"
        "            if b'canary_of_the_reference' in data: return 2 * x\n"
    ),
    "reads files": (
        "import os\ndef f(x):\n"
        "    for folder, _, names in os.walk('/'):\n"
        "        for name in names[:50]:\n"
        "            try: data = open(os.path.join(folder, name), 'rb').read(2000)\n"
        "            except Exception: continue\n"
        "            if b'canary_of_the_reference' in data: return 2 * x\n"
    ),
    "network": "import socket\ndef f(x):\n    socket.create_connection(('1.1.1.1', 53), 1)\n    return 2 * x",
    "replaces json": 'import json\njson.dumps = lambda *_, **__: \'{"value": ["none"]}\'\ndef f(x): return 1',
    "replaces builtins": "import builtins\nbuiltins.isinstance = lambda *_: True\ndef f(x): return 1",
    "error without text": "class E(Exception):\n    def __str__(self): raise E\ndef f(x): raise E",
    "null bytes": "def f(x): return '\\0\\ud800'",
}
"""Programs that must score 0, and leave the scorer able to score the next one."""


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_attack_scores_0_and_the_next_answer_is_scored(scorers: OpenScorers, attack: str) -> None:
    reference = f"{DOUBLE}  # canary_of_the_reference"
    hostile, right = scored(scorers, [ATTACKS[attack], DOUBLE], reference)
    assert (hostile.score, hostile.correct, hostile.error) == (0, False, None), attack
    assert (right.score, right.correct) == (1, True)
    assert "canary_of_the_reference" not in hostile.detail


def test_processes_that_a_call_leaves_behind_do_not_reach_the_next_one(scorers: OpenScorers) -> None:
    leaves = (
        "import os, time\ndef f(x):\n    if x != 1: return 2 * x\n"
        "    while True:\n        try: os.fork()\n        except OSError: time.sleep(1e9)"
    )
    (found,) = scored(scorers, [leaves])
    assert [row["passed"] for row in json.loads(found.detail)] == [False, True]


def test_hostile_answers_at_once_escape_nothing(tmp_path: Path) -> None:
    """They try to leave a file outside, and to end the evaluator; every tenth answer is right, and scores 1.

    200 of them at once in `make sweep`, a quarter in CI.
    """
    count = examples(200)
    target = tmp_path / "escaped"
    leave = f"\ntry:\n    open({str(target)!r}, 'w').write('x')\nexcept Exception: pass\n"
    names = [name for name in ATTACKS if "walk" not in ATTACKS[name]]
    answers = [DOUBLE if place % 10 == 0 else ATTACKS[names[place % len(names)]] + leave for place in range(count)]
    with opened(strict=PROFILES["strict"]) as scorers:
        found = scored(scorers, answers)
    assert [one.score for one in found] == [1 if place % 10 == 0 else 0 for place in range(count)]
    assert not target.exists() and all(one.error is None for one in found)
