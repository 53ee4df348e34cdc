"""The symbolic layer with its real, confined process, and what hostile answers do to it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.core.answers.math_equal import SymbolicVerdict, math_equal
from treadle.core.answers.score import score_answer
from treadle.core.answers.symbolic import SymbolicChecker
from treadle.core.errors import EngineError


@pytest.fixture(scope="module")
def checker() -> Iterator[SymbolicChecker]:
    with SymbolicChecker(limit_s=1.0) as checker:
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
        ("1|2", "1"),
        ("5 or x", "5"),
        ("\\", "5"),
        ("\ud800x", "5x"),
        ("\x00", "x"),
    ],
)
def test_algebra_does_not_find_too_much(checker: SymbolicChecker, left: str, right: str) -> None:
    assert not math_equal(left, right, checker).equal


@pytest.mark.covers("evaluation-4")
@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^9}}",
        "((9!)!)!",
        "(x+1)^{5000}",
        "{" * 390,
        r"\frac{" * 60,
        r"\sqrt" * 60,
        "-" * 390 + "x",
        "x^{100000000}",
        "1" * 1_000_000,
        "x+" * 500_000,
    ],
)
def test_hostile_answer_is_unequal_and_the_next_one_is_judged(checker: SymbolicChecker, answer: str) -> None:
    assert not math_equal(answer, r"x+\pi", checker).equal
    assert math_equal("x+1", "1+x", checker).equal


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_s_of_ended() -> float:
    """The same of all our children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.covers("evaluation-4")
def test_a_comparison_is_ended_within_a_second_of_its_limit_in_processor_time_and_is_unequal() -> None:
    with SymbolicChecker(limit_s=0.2) as checker:
        assert checker.check("x+1", "1+x").equal
        process = _process(checker)
        spent_s, ended_s = cpu_s(process.pid), cpu_s_of_ended()
        assert checker.check("9^{9^{9^9}}", r"x+\pi") == SymbolicVerdict(False, "time")
        assert process.returncode == -signal.SIGPROF, "the kernel's timer ended it, in the middle of one long operation"
        # The limit is one of processor time, so that a busy machine decides nothing; so is the second beyond it.
        assert cpu_s_of_ended() - ended_s - spent_s < 0.2 + 1.0
        assert checker.check("x+1", "1+x").equal


@pytest.mark.covers("evaluation-4")
def test_answer_that_takes_too_long_names_the_limit(checker: SymbolicChecker) -> None:
    assert checker.check("9^{9^{9^9}}", r"x+\pi").limit in ("time", "memory")
    assert score_answer("9^{9^{9^9}}", [r"x+\pi"], domain="math", checker=checker).correct is False
    assert score_answer("9^{9^{9^9}}", [r"x+\pi"], domain="math", checker=checker).scorer == "math_symbolic_limit"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {path}')",
        r"\text{{__import__('pathlib').Path('{path}').touch()}}",
        r"\mathrm{{open('{path}','w')}}",
        r"x_{{open('{path}','w')}}",
    ],
)
def test_no_answer_runs_as_python(checker: SymbolicChecker, tmp_path: Path, text: str) -> None:
    path = tmp_path / "made"
    checker.check(text.format(path=path), "x")
    assert not path.exists()


def test_evaluating_text_is_refused_in_the_worker() -> None:
    program = (
        "import sys, treadle.core.answers.symbolic_worker as worker\n"
        "sys.addaudithook(worker._refuse_evaluation)\n"
        "try:\n    eval('1+1')\nexcept PermissionError:\n    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"


def test_worker_killed_once_is_replaced(checker: SymbolicChecker) -> None:
    assert checker.check("x+1", "1+x").equal
    _process(checker).kill()
    assert checker.check("x+1", "1+x") == SymbolicVerdict(True)


def test_worker_killed_again_and_again_is_an_error_not_a_verdict() -> None:
    with SymbolicChecker(limit_s=30.0) as checker:
        failure: list[EngineError] = []

        def ask() -> None:
            try:
                checker.check("9^{9^{9^9}}", r"x+\pi")
            except EngineError as error:
                failure.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while thread.is_alive():
            for worker in list(checker._all):
                worker.process.kill()
            thread.join(0.05)
        assert failure


def test_context_leaves_no_process() -> None:
    with SymbolicChecker(workers=2) as checker:
        checker.check("x+1", "1+x")
        process = _process(checker)
    assert process.returncode is not None


def test_worker_dies_with_its_parent() -> None:
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
    end = time.monotonic() + 20
    while _is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
