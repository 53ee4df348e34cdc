"""Which rows of other programs' files are accepted, which are skipped and why, and the outcomes of their calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.foreign_desk import RIGHT, WRONG, Desk, calling, evolved, sampled
from support.sweep import examples

from treadle.cli.commands.import_files import import_
from treadle.formats.et_agent.records import ImportRecord, RejectedRow, read_records
from treadle.formats.et_agent.rows import status_of_result

ASKED = {"question": "q", "answer": "1", "source": "openr1"}


@pytest.fixture
def flywheel(tmp_path: Path) -> Desk:
    return Desk(tmp_path, ["pools", "sft_rows"])


@pytest.fixture
def direct(tmp_path: Path) -> Desk:
    return Desk(tmp_path, ["rl"])


BAD: list[tuple[Any, str]] = [
    ('{"torn', "bad_json"),
    ("[1]", "not_an_object"),
    (ASKED, "missing_field"),
    (evolved(4), "no_trajectories"),
    (evolved(4, prediction="Timeout"), "no_trajectories"),
    (evolved(4, RIGHT, evolve_predictions=[]), "not_aligned"),
    (evolved(4, RIGHT, verdicts=["yes"]), "wrong_type"),  # type: ignore[list-item]
    (evolved(4, RIGHT, evolve_trajectories_buffer="text"), "wrong_type"),
    (evolved(4, RIGHT, evolve_trajectories_buffer=[{"text": RIGHT}]), "wrong_type"),
    (evolved(4, RIGHT, answer=[]), "empty_answer"),
    (evolved(4, RIGHT, answer=None), "missing_field"),
    (evolved(4, RIGHT, input={"a": 1}), "wrong_type"),
    (evolved(4, RIGHT, source="\x1b[31mhacked"), "bad_source"),
    (evolved(4, RIGHT, source="nobody-knows"), "unknown_source"),
    (evolved(4, "nul\0" + RIGHT), "nul_character"),
    (evolved(4, "lone \ud800" + RIGHT), "lone_surrogate"),
    (evolved(4, *["x"] * 1_001), "too_long"),
    (evolved(4, "x" * 1_000_001), "too_long"),
    (evolved(1, WRONG), "repeated"),
    ({**ASKED, "pool": [{"trajectory": "x", "parent_tid": "y"}]}, "bad_parent"),
    ({**ASKED, "pool": ["x"]}, "wrong_type"),
    ({**ASKED, "pool": [{"trajectory": "x", "score": 1e9}]}, "bad_value"),
    ("[" * 100_000, "bad_json"),
]  # fmt: skip


def test_bad_rows_are_reported_by_line_and_reason_and_good_ones_kept(flywheel: Desk) -> None:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in [evolved(1, RIGHT), *(bad for bad, _ in BAD)]]
    path = flywheel.write([line + "\n" for line in [*lines, json.dumps(evolved(2, RIGHT))]], "pools.jsonl")
    told = flywheel.bring("pools", path)
    assert told["num_rows"] == 2
    assert [(one["line"], one["reason"]) for one in told["rejected"]] == [
        (number, reason) for number, (_, reason) in enumerate(BAD, 2)
    ]
    shown = CliRunner().invoke(
        import_,
        ["et-agent", "pools", str(path), str(flywheel.config), "--run", "s", "--root", str(flywheel.root), "--out",
         str(flywheel.folder / "more")],
    )  # fmt: skip
    assert "2 trajectories of 2 rows" in shown.output and "left out: bad source; the first is row 14" in shown.output
    assert "give --domain NAME=DOMAIN" in shown.output and "\x1b" not in shown.output


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tool_counts": [{"search_times": 0, "python_times": 2, "total_times": 2}]}, "counts_differ"),
        ({"tool_counts": [{"search_times": 1, "python_times": 1, "total_times": 1}]}, "bad_value"),
        ({"tool_counts": [{"search_times": 0, "python_times": -1, "total_times": -1}]}, "bad_value"),
        ({"tool_counts": [{"python_times": True}]}, "bad_value"),
        ({"tool_counts": [None]}, "wrong_type"),
        ({"tool_counts": None}, "missing_field"),
        ({"finish": ["who knows"]}, "bad_value"),
    ],
)
def test_rollouts_with_inconsistent_counts_are_excluded(direct: Desk, fields: dict[str, Any], reason: str) -> None:
    path = direct.write([sampled(1, calling("36")), sampled(2, calling("36")) | fields])
    told = direct.bring("rollouts", path, "--instance", "1/rollouts@policy")
    assert [(one["line"], one["reason"]) for one in told["rejected"]] == [(2, reason)]
    assert told["num_rows"] == 1


def test_only_errors_reported_by_a_tool_are_failures() -> None:
    assert status_of_result("search", "An error is a mistake. Errors are human: TypeError") == "ok"
    assert status_of_result("python", "the error is small") == "ok"
    assert status_of_result("python", 'File "<string>", line 1\n    x=\nSyntaxError: invalid syntax') == "error"
    assert (
        status_of_result("python", "Traceback (most recent call last):\nnumpy.linalg.LinAlgError: Singular") == "error"
    )
    assert status_of_result("search", "Bing search failed: rivers") == "error"
    assert status_of_result("search", "Tool execute failed: 'NoneType'") == "error"
    assert [status_of_result("python", text) for text in ("", "Execution Timeout")] == ["empty", "timeout"]
    assert status_of_result("search", "invalid query") == "invalid"
    assert status_of_result("search", "The search query is empty.") == "invalid"
    assert status_of_result("python", "invalid program: it is empty") == "invalid"
    assert status_of_result(
        "python", "The limit of python calls (6) is reached; this call was not run. Go on without it."
    ) == ("refused")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("input", "question", "answer", "source", "pool", "rollout_outputs", "tool_counts", "finish") + (
    "evolve_trajectories_buffer",
    "evolve_predictions",
    "evolve_trajectories_llm_judge_results",
)


@settings(max_examples=examples(150))
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(NAMES), JSON | st.lists(JSON, max_size=2), max_size=8), max_size=3)
)
def test_each_row_of_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("foreign") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [{}, *rows]))
    for kind in ("pools", "rollouts"):
        found = list(read_records(path, kind))  # type: ignore[arg-type]
        assert [one.number for one in found] == list(range(1, len(rows) + 2))
        assert all(isinstance(one, ImportRecord | RejectedRow) for one in found)
