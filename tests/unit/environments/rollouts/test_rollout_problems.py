"""Problems of rollouts are found in their stored rows: tools that always fail, and equal rollouts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tables.score_tables import new_run, put_rows, rollout

from treadle.core.runs.address import Address
from treadle.environments.diagnosis.diagnosis import Diagnosis
from treadle.environments.diagnosis.reading import diagnoses_of
from treadle.environments.rollouts.tables import ROLLOUTS

DOWN = "<result>\nSearch failed: connection refused\n</result>"


def problems(root: Path, rows: list[dict[str, Any]]) -> list[Diagnosis]:
    run = new_run(root)
    put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    record = run.record(Address.parse("1/rollouts@base"))
    assert record is not None
    return diagnoses_of(record, run)


def calling(key: str, *outcomes: tuple[str, str, str]) -> dict[str, Any]:
    """Return an answered rollout with these calls: tool, status, result."""
    segments = [one for tool, _, text in outcomes for one in ((tool, f"<{tool}>x</{tool}>"), ("result", text))]
    ran = [status != "refused" for _, status, _ in outcomes]
    failed = [status not in ("ok", "refused") for _, status, _ in outcomes]
    tools = [
        {"tool": tool, "requested": 1, "executed": int(did), "failed": int(bad)}
        for (tool, _, _), did, bad in zip(outcomes, ran, failed, strict=True)
    ]
    calls = [{"tool": tool, "argument": "x", "status": status, "turn": 0} for tool, status, _ in outcomes]
    columns = {"calls_requested": len(ran), "calls_executed": sum(ran), "failed_calls": sum(failed), "tools": tools}
    return rollout(key, key, [*segments, ("answer", key)], tool_calls=json.dumps(calls), **columns)


@pytest.mark.parametrize(
    ("outcomes", "name", "words"),
    [
        ([("search", "error", DOWN)], "failed_calls", "Search failed: connection refused"),
        ([("search", "error", DOWN), ("python", "ok", "4")], "failed_tool", "Search failed: connection refused"),
        ([("search", "refused", "No calls left.")], "refused_calls", "Limits of calls"),
    ],
)
def test_tools_that_never_work_are_named_with_what_they_say(
    tmp_path: Path, outcomes: list[tuple[str, str, str]], name: str, words: str
) -> None:
    (found,) = problems(tmp_path, [calling(f"r{number}", *outcomes) for number in range(8)])
    assert found.problem == name and words in " ".join(found.causes)
    assert [example.rollout_key for example in found.examples] == ["r0", "r1", "r2"]


def test_working_tools_and_few_failures_are_no_problem(tmp_path: Path) -> None:
    mixed = [calling(f"r{number}", ("search", "error" if number else "ok", DOWN)) for number in range(9)]
    assert problems(tmp_path / "mixed", mixed) == []
    assert problems(tmp_path / "few", [calling(f"r{number}", ("search", "error", DOWN)) for number in range(7)]) == []


@pytest.mark.parametrize("num_texts", [8, 2])
def test_error_that_differs_is_not_named(tmp_path: Path, num_texts: int) -> None:
    rows = [calling(f"r{number}", ("python", "error", f"NameError: {number % num_texts}")) for number in range(8)]
    (found,) = problems(tmp_path, rows)
    assert not any("NameError" in cause for cause in found.causes)


def test_equal_rollouts_of_every_question_are_a_problem(tmp_path: Path) -> None:
    def rows(second: str, num_questions: int = 8) -> list[dict[str, Any]]:
        return [
            rollout(f"r{number}-{place}", f"q{number}", [("answer", text)], sample_index=place)
            for number in range(num_questions)
            for place, text in enumerate(("one", second if number == 3 else "one"))
        ]

    (found,) = problems(tmp_path / "equal", rows("one"))
    assert found.problem == "equal_rollouts" and "8 questions" in found.summary
    assert problems(tmp_path / "unlike", rows("two")) == [], "their counts are equal, their texts are not"
    assert problems(tmp_path / "few", rows("one", 7)) == []


def test_reasoning_that_a_service_keeps_apart_can_use_up_the_tokens(tmp_path: Path) -> None:
    rows = [rollout(f"r{number}", "q", [("reasoning", "Hm. ")], status="length") for number in range(8)]
    (found,) = problems(tmp_path, rows)
    assert found.problem == "no_answer" and "Reasoning used up" in found.causes[0]
    assert found.examples[0].text == "Hm."


@pytest.mark.parametrize(
    "segments",
    [
        [("reasoning", "It is 4.")],
        [("think", "<think>It is 4.</think>")],
        [("think", "<think>a</think>"), ("reasoning", "b")],
    ],
)
def test_reasoning_without_text_after_it_is_a_cause(tmp_path: Path, segments: list[tuple[str, str]]) -> None:
    (found,) = problems(tmp_path, [rollout(f"r{number}", "q", segments, status="no_answer") for number in range(8)])
    assert [cause for cause in found.causes if cause.startswith("No text follows the reasoning")]


def test_text_after_the_reasoning_is_no_such_cause(tmp_path: Path) -> None:
    segments = [("think", "<think>a</think>"), ("other", "It is 4.")]
    (found,) = problems(tmp_path, [rollout(f"r{number}", "q", segments, status="no_answer") for number in range(8)])
    assert not [cause for cause in found.causes if "reasoning" in cause]


def test_rollouts_without_calls_are_read_without_pandas(tmp_path: Path) -> None:
    """As by every command without work that ends with their summary."""
    assert problems(tmp_path, [rollout("r", "q", [("answer", "x")])]) == []
    code = (
        "import sys\n"
        "from treadle.core.runs.run import Run\n"
        "from treadle.environments.diagnosis.reading import diagnoses_of\n"
        "run = Run.open(sys.argv[1], sys.argv[2])\n"
        "assert [diagnoses_of(record, run) for record in run.records()] == [[]]\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), "test"], check=True)
