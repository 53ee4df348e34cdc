"""The symbolic layer with its real, confined process, and what hostile answers do to it."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import confined_algebra
from support.runs.processes import until

from treadle.core.answers.math_equal import SymbolicVerdict, math_equal
from treadle.core.answers.rules import score_answer
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import EngineError

ENDLESS = r"\prod_{k=1}^{10^8} k"
"""One long operation of the big-number library."""


@pytest.fixture(scope="module")
def checker() -> Iterator[SymbolicChecker]:
    with SymbolicChecker(limit_s=1.0) as checker:
        yield checker


@pytest.fixture(scope="module")
def strict() -> Iterator[SymbolicChecker]:
    with SymbolicChecker(limit_s=0.3) as checker:
        yield checker


def _process(checker: SymbolicChecker) -> subprocess.Popen[bytes]:
    (worker,) = checker._all
    return worker.process


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"2\cdot 3", "6"),
        ("x+1", "1+x"),
        (r"\sqrt{8}", r"2\sqrt2"),
        (r"\frac{\pi}{2}", r"\pi/2"),
        ("2^{10}", "1024"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2/2 \\ 2\end{pmatrix}"),
        (r"(2\cdot 3, x+1)", r"(6, 1+x)"),
        (r"1\pm\sqrt{2}", r"1+\sqrt{2},1-\sqrt{2}"),
        ("3.5x", r"\frac{7}{2}x"),
        ("n^2-n", "n(n-1)"),
        ("(x-1)^2", "x^2-2x+1"),
        ("2^k2^{-n}", "2^{k-n}"),
        (r"\sin2x", r"2\sin x\cos x"),
        ("a-b", "-b+a"),
        (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}"),
        (r"\cos(n\pi)", "(-1)^n"),
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
        (r"\int_0^1 x\,dx", r"\frac12"),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
        (r"\gcd(12,18)x", "6x"),
        ("(1+i)^2", "2i"),
        ("2x+3y=6", "4x+6y=12"),
        ("2x>6", "x>3"),
        ("-2x<6", "x>-3"),
        ("f(x)=x(x+1)", "x^2+x"),
    ],
)
def test_algebra_finds_equal_answers(checker: SymbolicChecker, left: str, right: str) -> None:
    assert math_equal(left, right, checker).equal
    assert math_equal(right, left, checker).equal


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("xyz=5", "5"),
        ("12", "13"),
        ("(1,2)", "12"),
        ("x+1", "x+2"),
        (r"\pm 2", "2"),
        ("3.14", r"\pi"),
        ("5x", "5"),
        ("x<5", "x>5"),
        (r"\sqrt{x^2}", "x"),
        (r"\pi(R^2-r^2)", r"\pi(r^2-R^2)"),
        (r"\Gamma", r"\gamma"),
        ("I^2R", "-R"),
        ("e^{x+y}", "e^x+e^y"),
        ("-2x>6", "x>-3"),
        ("y=2x", "x=2y"),
        ("6m", "6"),
        ("(n-1)m", "(n-1)"),
        ("x=y,z=1", "z=y,x=1"),
        ("1|2", "1"),
        ("5 or x", "5"),
        ("\\", "5"),
        ("\ud800x", "5x"),
        ("\x00", "x"),
    ],
)
def test_algebra_does_not_report_false_equalities(checker: SymbolicChecker, left: str, right: str) -> None:
    assert not math_equal(left, right, checker).equal


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^9}}",
        pytest.param("((9!)!)!", marks=pytest.mark.sweep),
        "(x+1)^{5000}",
        "{" * 390,
        pytest.param(r"\frac{" * 60, marks=pytest.mark.sweep),
        pytest.param(r"\sqrt" * 60, marks=pytest.mark.sweep),
        "-" * 390 + "x",
        pytest.param("x^{100000000}", marks=pytest.mark.sweep),
        "1" * 1_000_000,
        "x+" * 500_000,
        pytest.param("((((9!)!)!)!)!", marks=pytest.mark.sweep),
        r"\prod_{k=1}^{10^8} k",
        r"\int\int\int \sin(x^x) dx dx dx",
        pytest.param("2^{2^{2^{2^{2^{2^{2^2}}}}}}", marks=pytest.mark.sweep),
        pytest.param(r"\gcd(10^{100000},7)", marks=pytest.mark.sweep),
        pytest.param("x^{x^{x^{x^{x^x}}}}", marks=pytest.mark.sweep),
    ],
)
def test_hostile_answer_is_unequal_and_the_next_one_is_judged(strict: SymbolicChecker, answer: str) -> None:
    assert not math_equal(answer, r"x+\pi", strict).equal
    assert math_equal("x+1", "1+x", strict).equal


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_s_of_ended() -> float:
    """Return the CPU time of all our children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.covers("evaluation-4")
def test_comparison_over_its_cpu_limit_ends_within_a_second_and_is_unequal() -> None:
    with SymbolicChecker(limit_s=0.2) as checker:
        assert checker.check("x+1", "1+x").equal
        process = _process(checker)
        spent_s, ended_s = cpu_s(process.pid), cpu_s_of_ended()
        assert checker.check(ENDLESS, r"x+\pi") == SymbolicVerdict(False, "time")
        assert process.returncode == -signal.SIGPROF, "the kernel's timer ended it, in the middle of one long operation"
        # The limit is one of processor time, so that a busy machine decides nothing; so is the second beyond it.
        assert cpu_s_of_ended() - ended_s - spent_s < 0.2 + 1.0
        assert checker.check("x+1", "1+x").equal


@pytest.mark.covers("evaluation-4")
def test_answer_that_takes_too_long_names_the_limit(checker: SymbolicChecker) -> None:
    assert checker.check(ENDLESS, r"x+\pi").cause in ("time", "memory")
    score = score_answer(ENDLESS, [r"x+\pi"], domain="math", checker=checker)
    assert (score.correct, score.scorer) == (False, "math_symbolic_limit")


CODE = "__import__('pathlib').Path('{path}').touch()"


@pytest.mark.parametrize(
    "text",
    [
        CODE,
        r"\text{{{code}}}",
        r"\mathrm{{{code}}}",
        "x_{{{code}}}",
        r"\operatorname{{{code}}}(x)",
        "f({code})",
        r"\begin{{pmatrix}}{code}\end{{pmatrix}}",
        r"\variable{{{code}}}",
        "[[{code}]]",
        r"\frac{{{code}}}{{1}}",
        "x={code}",
        r"\int {code} dx",
        "1e{code}",
        "{code}%",
        r"\$ {code}",
        "lambda: {code}",
        "().__class__.__base__.__subclasses__()",
        '"+{code}+"',
        "\n{code}\n",
    ],
)
def test_no_answer_is_executed_as_python(checker: SymbolicChecker, tmp_path: Path, text: str) -> None:
    path = tmp_path / "made"
    said = text.replace("{code}", CODE).format(path=path) if text != "().__class__.__base__.__subclasses__()" else text
    for left, right in ((said, "x"), ("x", said), (said, said + " ")):
        checker.check(left, right)
        math_equal(left, right, checker)
    assert not path.exists()


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a confined process reported."""
    folder = tmp_path_factory.mktemp("confined")
    command = [sys.executable, "-W", "ignore", confined_algebra.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [path.name for path in folder.iterdir()] == ["existing"]
    assert (folder / "existing").read_text() == "kept"
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_confined_process_executes_no_text_writes_nothing_and_has_no_network(confined: dict[str, Any]) -> None:
    assert not {name: kind for name, kind in confined["refusals"].items() if kind == "done"}
    by_hook = {"eval", "exec", "compile", "lambdify", "namedtuple", "open to write", "system", "connect"}
    assert {confined["refusals"][name] for name in by_hook} == {"PermissionError"}


def test_confined_algebra_still_computes(confined: dict[str, Any]) -> None:
    assert confined["same operations"] is True, "of monomials, as sympy's own give them"
    assert confined["late imports"] == []
    assert all(confined["computations"].values()), confined["computations"]


@pytest.mark.parametrize(
    ("left", "right", "cause"),
    [
        (r"\frac{\frac{", "x", "unread"),
        (r"x \unknown{}{} y", "x", "unread"),
        ("2^{2^{2^{2^{2^{2^{2^2}}}}}}", r"x+\pi", "error: OverflowError"),
        ("-" * 390 + "x", "y", "depth"),
    ],
)
def test_undecidable_algebra_names_its_cause(checker: SymbolicChecker, left: str, right: str, cause: str) -> None:
    assert checker.check(left, right) == SymbolicVerdict(False, cause)


def test_undecided_comparisons_are_counted_by_cause_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with SymbolicChecker(limit_s=0.5) as checker:
        for prediction in ("1+x", "2+x", r"\frac{\frac{", "x=}", ENDLESS):
            checker.check(prediction, "x+1")
        assert (checker.num_checks, dict(checker.undecided)) == (5, {"unread": 2, "time": 1})
        assert not caplog.messages
    assert caplog.messages == [
        "computer algebra could not decide 3 of 5 comparisons, which count as unequal: unread 2, time 1"
    ]


def test_worker_killed_once_is_replaced(checker: SymbolicChecker) -> None:
    assert checker.check("x+1", "1+x").equal
    _process(checker).kill()
    assert checker.check("x+1", "1+x") == SymbolicVerdict(True)


def test_repeatedly_killed_worker_is_an_error_not_a_verdict() -> None:
    with SymbolicChecker(limit_s=30.0) as checker:
        failure: list[EngineError] = []

        def ask() -> None:
            try:
                checker.check(ENDLESS, r"x+\pi")
            except EngineError as error:
                failure.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while thread.is_alive():
            for worker in list(checker._all):
                worker.process.kill()
            thread.join(0.05)
        assert failure


class Fragile:
    """A worker that crashes at one of the answers, or runs out of memory."""

    def __init__(self, limit_s: float, memory_mib: int) -> None:
        self.num_requests, self.is_usable = 0, True

    def wait_ready(self) -> None: ...

    def close(self) -> None: ...

    def compare(self, prediction: str, gold: str) -> SymbolicVerdict:
        self.num_requests += 1
        if prediction not in ("crash", "memory"):
            return SymbolicVerdict(True)
        self.is_usable = prediction == "memory"
        return SymbolicVerdict(False, prediction)


@pytest.mark.parametrize("cause", ["crash", "memory"])
def test_answer_that_crashes_every_used_worker_is_unequal_without_error(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr("treadle.core.answers.symbolic._Worker", Fragile)
    with SymbolicChecker(workers=4) as checker:
        assert all(checker.check("x", "x").equal for _ in range(4)), "now each worker has served a request"
        assert checker.check(cause, "x") == SymbolicVerdict(False, cause)
        assert len(checker._all) == 2, "one more worker was given up for it, for a fresh one"
        assert checker.check("x", "x").equal


def test_context_leaves_no_process() -> None:
    with SymbolicChecker(workers=2) as checker:
        checker.check("x+1", "1+x")
        process = _process(checker)
    assert process.returncode is not None


def test_worker_exits_with_its_parent() -> None:
    program = (
        "import os, signal\n"
        "from treadle.core.answers.symbolic import SymbolicChecker\n"
        "checker = SymbolicChecker().__enter__()\n"
        "checker.check('x+1', '1+x')\n"
        "print(next(iter(checker._all)).process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    until(lambda: not _is_running(pid), f"the end of the worker {pid}", limit_s=20.0)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
