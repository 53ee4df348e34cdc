"""Bad input, wrong settings, a full disk, signals: one line, an exit code, nothing lost."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs.command_line import QUESTIONS, Desk, num_requests, set_up, tutor, without_override
from support.runs.processes import family, until
from support.sweep import sampled

NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tutor() as url:
        yield url


@pytest.fixture
def desk(url: str, tmp_path: Path) -> Desk:
    return set_up(tmp_path / "desk", url)


@pytest.fixture(scope="module")
def finished(url: str, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Return a run named `first` that is done; tests that change it copy it."""
    desk = set_up(tmp_path_factory.mktemp("finished"), url)
    desk.treadle("run", "run.toml", "--run", "first").succeeded()
    return desk


def resumes(desk: Desk, *more: str, run_id: str = "r") -> None:
    """Check that the same command finishes the run once the cause is mended."""
    records = desk.treadle("run", "run.toml", "--run", run_id, "--json", *more).succeeded().json()
    assert [record["stage"] for record in records] == ["questions", "rollouts", "scores", "report"]


WRONG: list[tuple[list[str], list[str]]] = [
    (["run", "gone.toml", "--run", "r"], ["gone.toml", "does not exist"]),
    (["run", "broken.toml", "--run", "r"], ["broken.toml", "line 2"]),
    (["run", "binary.toml", "--run", "r"], ["binary.toml", "UTF-8", "byte 1"]),
    (["run", "--run", "r"], ["'r'", "configuration file"]),
    (["run", "run.toml"], ["--run", "treadle run --help"]),
    (["run", "run.toml", "--run", "../r"], ["'../r'", "letters"]),
    (["run", "run.toml", "--run", "r", "--set", "rollouts.max_questons=3"], ["max_questons", "mean 'max_questions'"]),
    (["run", "run.toml", "--run", "r", "--set", "rollouts.max_questions=many"], ["rollouts.max_questions", "integer"]),
    (["run", "run.toml", "--run", "r", "--set", "seed"], ["'seed'", "section.key=value"]),
    (["run", "run.toml", "--run", "r", "--set", "a..b=1"], ["'a..b=1'", "section.key=value"]),
    (["run", "run.toml", "--run", "r", "--set", 'questions.sources=[{path="no",domain="qa"}]'], ["no does not exist"]),
    (["run", "run.toml", "--run", "r", "--set", "models.tutor.model=gpt"], ["127.0.0.1", "'gpt'", "treadle-tutor"]),
    (["run", "run.toml", "--run", "r", "--set", "models.tutor.max_model_len=99999"], ["127.0.0.1", "32768", "99999"]),
    (["run", "run.toml", "--run", "r", "--prefect"], ["PREFECT_API_URL"]),
    (["run", "run.toml", "--run", "r", "--root", "/sys/treadle"], ["/sys/treadle", "choose"]),
    (["run", "run.toml", "--run", "r", "--root", "gs://bucket/x"], ["gs://bucket/x", "s3://bucket/prefix"]),
    (["run", "run.toml", "--run", "r", "--root", "run.toml"], ["run.toml", "is a file"]),
    (["bogus"], ["bogus", "treadle --help"]),
    (["statsu"], ["'statsu'", "'status'"]),
    (["run", "run.toml", "--run", "r", "--set", 'scorers.x.type="mat"'], ["'mat'", "mean 'math'"]),
    (["tutor", "--bogus"], ["--bogus", "treadle tutor --help"]),
    (["serve", "embedded"], ["treadle env install serve"]),
    (["env", "install", "nothing"], ["'nothing'", "serve", "sft"]),
]  # fmt: skip


NOT_INPUT = [["run", "run.toml", "--run", "r", "--root", "/sys/treadle"], ["serve", "embedded"]]
"""Failures of the machine: exit code 1."""


@pytest.mark.covers("flywheel-32")
@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_wrong_command_is_rejected_in_one_line_and_writes_nothing(
    finished: Desk, arguments: list[str], words: list[str]
) -> None:
    (finished.folder / "broken.toml").write_text("seed = 1\nmodels = ?\n")
    (finished.folder / "binary.toml").write_bytes(b"\xff\xfe")
    done = finished.treadle(*arguments, TREADLE_CACHE=str(finished.folder / "cache"))
    done.failed(*words, code=1 if arguments in NOT_INPUT else 2)
    assert done.out == "" and not (finished.folder / "outputs/runs/r").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stage", "1/nope"], ["'nope'", "rollouts"]),
        (["stage", "nonsense"], ["'nonsense'", "1/rollouts@base"]),
        (["stage", "1/rollouts@other"], ["1/rollouts@other", "1/rollouts@tutor"]),
        (["stage", "2/questions"], ["2/questions", "1/questions"]),
        (["stage", "1/\x1b[31m"], [r"1/\x1b[31m"]),
        (["show", "zz"], ["'zz'"]),
        (["show", "\x1b]8;;x\x07"], [r"\x1b]8"]),
        (["show", ""], ["3 keys"]),
        (["lineage", "zz"], ["'zz'"]),
        (["lineage", ""], ["6 keys"]),
    ],
    ids=lambda value: " ".join(value).encode("unicode_escape").decode(),
)
def test_missing_address_in_a_run_is_named(finished: Desk, arguments: list[str], words: list[str]) -> None:
    finished.treadle(*arguments, "--run", "first").failed(*words, code=2)


@pytest.mark.parametrize(
    "command", [["status"], ["verify"], ["show", "a"], ["lineage", "a"]], ids=lambda value: value[0]
)
def test_unknown_run_error_lists_existing_runs(finished: Desk, command: list[str]) -> None:
    finished.treadle(*command, "--run", "second").failed("second", "first", code=2)


def test_bad_rows_are_quarantined_with_line_and_reason(desk: Desk) -> None:
    bad = [
        QUESTIONS[0],
        {"question": "no answer"},
        b'{"question": "\xff\xfe", "answer": "1"}',
        {"question": "a nul \0", "answer": "1"},
        {"question": "half a pair \ud800", "answer": "1"},
        {"question": "A" * 10_000_000, "answer": "1"},
        b"not json",
        b"[1]",
    ]
    desk.write("questions.jsonl", *QUESTIONS, *bad)
    refused = desk.treadle("run", "run.toml", "--run", "r")
    line = refused.failed("questions.jsonl", "row 5", "no answer", "--accept-failures")
    listed = Path(re.search(r"full list: (\S+\.jsonl);", line)[1]).read_text()  # type: ignore[index]
    unusable = [json.loads(text) for text in listed.splitlines()]
    assert [row["source_row"] for row in unusable] == [5, 6, 7, 8, 9, 10, 11] and len(listed) < 10_000
    assert unusable[0] == {
        "source_file": "questions.jsonl", "source_row": 5, "dataset": "sums", "reason": "missing_field",
        "detail": unusable[0]["detail"], "raw": '{"question": "no answer"}',
    }  # fmt: skip
    resumes(desk, "--accept-failures")
    rows = desk.rows("r", "1/questions", "quarantine")
    assert [(row["source_row"], row["reason"]) for row in rows] == [
        (4, "exact_duplicate"), (5, "missing_field"), (6, "not_utf8"), (7, "nul_character"), (8, "lone_surrogate"),
        (9, "too_long"), (10, "bad_json"), (11, "not_an_object"),
    ]  # fmt: skip
    assert all(row["source_file"] == "questions.jsonl" and row["detail"] for row in rows)
    assert len(desk.rows("r", "1/rollouts@tutor", "rollouts")) == len(QUESTIONS)


@pytest.mark.covers("flywheel-32")
def test_file_without_usable_rows_is_named_and_the_run_resumes_with_a_fixed_one(desk: Desk) -> None:
    desk.write("questions.jsonl")
    desk.treadle("run", "run.toml", "--run", "r").failed("questions.jsonl", "no rows", code=2)
    desk.write("questions.jsonl", {"question": "no answer"})
    desk.treadle("run", "run.toml", "--run", "r").failed("questions.jsonl", "row 1", "answer_field", code=1)
    desk.write("questions.jsonl", *QUESTIONS)
    resumes(desk)


@pytest.mark.covers("flywheel-32")
def test_unreachable_endpoint_is_named_and_the_run_resumes_when_it_returns(desk: Desk) -> None:
    away = ("--set", f'models.tutor.endpoints=[{{url="{NOWHERE}"}}]')
    desk.treadle("run", "run.toml", "--run", "r", *away).failed(NOWHERE, "cannot be reached", code=1)
    state = desk.treadle("status", "--run", "r").succeeded().out
    assert "1/rollouts@tutor failed: " in state and NOWHERE in state and "treadle run --run r" in state
    resumes(desk)


def test_mistake_found_by_the_first_stage_can_be_fixed_in_the_same_run(desk: Desk) -> None:
    """Nothing was made, so nothing binds the run to it; from the first result on it is bound."""
    wrong = ("--set", 'questions.sources=[{path="questions.jsonl",domain="math",answer_field="anwser"}]')
    desk.treadle("run", "run.toml", "--run", "r", *wrong).failed("'anwser'", code=1)
    resumes(desk)
    desk.treadle("run", "run.toml", "--run", "r", *wrong).failed("choose a new run id", code=2)


def test_accepted_failures_become_failed_rows(desk: Desk) -> None:
    away = ("--set", f'models.tutor.endpoints=[{{url="{NOWHERE}"}}]', "--set", "rollouts.max_error_rate=1.0")
    desk.treadle("run", "run.toml", "--run", "r", *away, "--accept-failures").succeeded()
    rows = desk.rows("r", "1/rollouts@tutor", "rollouts")
    assert len(rows) == len(QUESTIONS) and {row["status"] for row in rows} == {"failed"}
    assert all(NOWHERE in row["error"] for row in rows)


def test_window_too_small_for_every_question_is_an_error_not_a_zero_score(desk: Desk) -> None:
    small = ("--set", "models.tutor.max_model_len=10")
    desk.treadle("run", "run.toml", "--run", "r", *small).failed("window", "models.tutor.max_model_len = 10", code=1)
    with tutor("--max-model-len", "64") as narrow:
        own = ("--set", f'models.tutor.endpoints=[{{url="{narrow}"}}]')
        line = desk.treadle("run", "run.toml", "--run", "n", *own).failed("window", "--force", code=1)
    desk.treadle(*line.rpartition("treadle ")[2].split(), "run.toml", "--run", "n").succeeded()
    resumes(desk, run_id="n")


@pytest.mark.covers("flywheel-32")
def test_missing_interpreter_is_named_and_the_run_resumes_without_it(url: str, tmp_path: Path) -> None:
    desk = set_up(tmp_path / "desk", url, python=True)
    wrong = ("--set", "environment.python.sandbox.interpreter=/no/such/python")
    desk.treadle("run", "run.toml", "--run", "r", *wrong).failed("/no/such/python", "sandbox.interpreter")
    resumes(desk)


def test_read_only_root_is_named_and_the_run_resumes_when_writable(desk: Desk) -> None:
    away = ("--set", f'models.tutor.endpoints=[{{url="{NOWHERE}"}}]')
    desk.treadle("run", "run.toml", "--run", "r", *away).failed(NOWHERE)
    folders = [path for path in (desk.folder / "outputs").rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    refused = desk.alone("run", "run.toml", "--run", "r", prepare=without_override)
    for folder in folders:
        folder.chmod(0o755)
    refused.failed(str(desk.folder / "outputs"), "permission denied", code=1)
    resumes(desk)


def test_full_disk_is_named_and_the_run_resumes_with_free_space(desk: Desk) -> None:
    more = ("--set", "rollouts.samples_per_question=4")
    desk.treadle("run", "run.toml", "--run", "r", *more, file_bytes=8192).failed("cannot write", "larger than allowed")
    resumes(desk, *more)


def test_damage_is_detected_and_repaired_by_rerunning_the_stage(finished: Desk, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path, dirs_exist_ok=True)
    desk = Desk(tmp_path)
    (part,) = (tmp_path / "outputs/artifacts/rollouts").glob("*/data/part-*.parquet")
    content = bytearray(part.read_bytes())
    content[100] ^= 1
    part.write_bytes(content)
    done = desk.treadle("verify", "--run", "first")
    done.failed("1 of 8", "first", "treadle stage 1/rollouts@tutor --run first --force", code=1)
    assert [line.split()[1].split("/")[1] for line in done.out.splitlines() if line.startswith("damaged")] == [
        "rollouts"
    ]
    part.write_bytes(b"")
    desk.treadle("show", "a", "--run", "first").failed(part.name, "has changed since")
    desk.treadle("stage", "1/rollouts@tutor", "--run", "first", "--force").succeeded()
    desk.treadle("verify", "--run", "first").succeeded()


def test_modified_record_is_detected(finished: Desk, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path, dirs_exist_ok=True)
    record = tmp_path / "outputs/runs/first/records/1/scores@tutor.json"
    record.write_text(record.read_text().replace('"metrics": {', '"metrics": {"more": 1,'))
    done = Desk(tmp_path).treadle("verify", "--run", "first")
    done.failed("of run first are damaged", "records/1/scores@tutor.json has changed since", "restore it", code=1)
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("damaged")] == [
        "runs/first/records/1/scores@tutor.json"
    ]


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    with tutor("--latency-s", "0.4") as url:
        yield url


def working(desk: Desk, slow: str, run_id: str) -> tuple[str, ...]:
    """Arguments of a run that takes its time, one request after the other."""
    speed = ("--set", "rollouts.samples_per_question=4", "--set", "rollouts.max_concurrent=1")
    return ("run", "run.toml", "--run", run_id, *speed, "--set", f'models.tutor.endpoints=[{{url="{slow}"}}]')


@pytest.mark.parametrize(
    "number", sampled([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]), ids=lambda number: number.name
)
def test_signal_ends_a_run_with_one_line_and_the_run_can_resume(desk: Desk, slow: str, number: signal.Signals) -> None:
    before = num_requests(slow)
    with desk.started(*working(desk, slow, "r")) as process:
        until(lambda: num_requests(slow) - before >= 9, "two turns are done")
        process.send_signal(number)
        done = desk.ended(process)
    done.failed("interrupted", "the same command", code=130)
    state = {item["address"]: item for item in desk.treadle("status", "--run", "r", "--json").succeeded().json()}
    assert state["1/rollouts@tutor"]["state"] == "interrupted" and state["1/questions"]["state"] == "completed"
    assert state["1/rollouts@tutor"]["num_finished"] >= 1
    resumes(desk, "--set", "rollouts.samples_per_question=4")


def test_interrupted_forced_run_is_reported_and_resumed(desk: Desk, url: str, slow: str) -> None:
    usual = ("run", "run.toml", "--run", "r", "--set", "rollouts.samples_per_question=4")
    desk.treadle(*usual).succeeded()
    before = num_requests(slow)
    with desk.started(*working(desk, slow, "r"), "--force") as process:
        until(lambda: num_requests(slow) - before >= 9, "two turns are done")
        process.send_signal(signal.SIGINT)
        desk.ended(process).failed("interrupted", code=130)
    state = desk.treadle("status", "--run", "r").succeeded().out
    assert "1/rollouts@tutor completed, but a forced attempt after it was interrupted: " in state
    assert "treadle run --run r --force" in state and "failed" not in state
    planned = desk.treadle(*usual, "--dry-run", "--force", "--json").succeeded().json()
    assert list(planned["plan"].values()) == ["reuse", "run", "run", "run"]
    asked = [num_requests(url)]
    for reused in (True, False):
        records = desk.treadle(*usual, "--json", "--force").succeeded().json()
        assert [record["reused"] for record in records] == [reused, False, False, False]
        asked.append(num_requests(url))
    assert 0 < asked[1] - asked[0] < asked[2] - asked[1]
    assert "forced" not in desk.treadle("status", "--run", "r").succeeded().out


def test_second_signal_ends_a_run_and_its_children_immediately(desk: Desk, slow: str) -> None:
    own = 'models.tutor={model="treadle-tutor",endpoints=[],server={type="tutor",options={latency_s=0.3}}}'
    with desk.started("run", "run.toml", "--run", "r", "--set", own) as process:
        until(lambda: b" answers at " in (desk.folder / "err").read_bytes(), "its tutor is up")
        started = family(process.pid)
        assert started
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with_pause(process)
        done = desk.ended(process)
    done.failed("everything finished so far is kept", code=130)
    until(lambda: not any(seen.lives() for seen in started), "its children are gone")
    resumes(desk, "--set", own)


def with_pause(process: subprocess.Popen[bytes]) -> None:
    """Leave the process a moment to end before the second signal."""
    try:
        process.wait(timeout=0.02)
    except subprocess.TimeoutExpired:
        return


def test_lost_prefect_server_is_named(finished: Desk) -> None:
    done = finished.treadle("run", "--run", "first", PREFECT_API_URL="http://127.0.0.1:9/api")
    done.failed("PREFECT_API_URL=http://127.0.0.1:9/api", "does not answer", code=2)
