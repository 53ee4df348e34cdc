"""Calls by tool: any names, a bounded number of them."""

from __future__ import annotations

from treadle.agent.contract import CallRecord, Ledger
from treadle.agent.tools.outcome import OutcomeStatus
from treadle.agent.trajectory import Trajectory
from treadle.environments.rollouts.rows import head_of_row, row_of
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.environments.rollouts.tool_counts import (
    INVALID,
    MAX_TOOLS,
    OTHERS,
    ToolTotals,
    counts_text,
    seconds_by_tool,
    tool_counts,
)


def call(tool: str, status: OutcomeStatus = "ok", seconds: float = 0.0) -> CallRecord:
    return CallRecord(tool, "x", status, 0, seconds=seconds)


def test_calls_are_counted_by_any_name() -> None:
    calls = [call("wiki.read-page_2"), call("calc", "error"), call("calc", "refused"), call("calc"), call("None")]
    assert tool_counts(Ledger(calls)) == [
        {"tool": "None", "requested": 1, "executed": 1, "failed": 0},
        {"tool": "calc", "requested": 3, "executed": 2, "failed": 1},
        {"tool": "wiki.read-page_2", "requested": 1, "executed": 1, "failed": 0},
    ]
    assert counts_text(tool_counts(Ledger(calls))) == "calc 3, None 1, wiki.read-page_2 1"


def test_names_that_no_tool_can_have_share_one_row() -> None:
    names = ["", "<script>alert(1)</script>", "a b", "x" * 65, "calc\n", "\x1b[2J", "(others)", "c\u0430lc"]
    calls = [call(name, "invalid", 0.5) for name in names]
    row = {"tool": INVALID, "requested": len(names), "executed": len(names), "failed": len(names)}
    assert tool_counts(Ledger(calls)) == [row]
    assert seconds_by_tool(calls) == [{"tool": INVALID, "executed": len(names), "seconds": 0.5 * len(names)}]


def test_seconds_leave_out_calls_that_did_not_run() -> None:
    calls = [call("b", seconds=1.5), call("a", "timeout", 2.0), call("b", "error", 0.5), call("c", "refused", 9.0)]
    assert seconds_by_tool(calls) == [
        {"tool": "a", "executed": 1, "seconds": 2.0},
        {"tool": "b", "executed": 2, "seconds": 2.0},
    ]


def test_columns_of_a_row_agree_with_their_sums() -> None:
    calls = [call("a"), call("b", "empty"), call("b", "refused"), call("", "invalid")]
    question = {"question_key": "k", "dataset": "d", "domain": "qa", "question": "Who?", "choices": []}
    row = row_of(head_of_row(question, "m", 0, 1), Trajectory("answered", "", [], [], calls, 1), "e", "t")
    assert row.keys() == set(ROLLOUTS.schema.names) - {"job"}
    for column, key in (("calls_requested", "requested"), ("calls_executed", "executed"), ("failed_calls", "failed")):
        assert row[column] == sum(one[key] for one in row["tools"])


def test_totals_name_the_tools_that_run_most_and_sum_up_the_others() -> None:
    """Invented names never run, so they do not displace the tools, however often they are called."""
    totals = ToolTotals()
    for number in range(1_000):
        calls = [call("calc"), *[call(f"made-up-{number % 10}", "refused")] * 20]
        totals.add(tool_counts(Ledger([*calls, *([call("wiki")] if number % 2 else [])])))
    found = totals.bounded()
    assert list(found)[:2] == ["calc", "wiki"] and list(found)[-1] == OTHERS and len(found) == MAX_TOOLS + 1
    assert found["calc"] == {"requested": 1_000, "executed": 1_000, "failed": 0}
    assert found[OTHERS] == {"requested": 4 * 2_000, "executed": 0, "failed": 0}
    assert ToolTotals().bounded() == {} and counts_text([]) == ""
