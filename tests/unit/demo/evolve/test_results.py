"""What the demo that makes its own tasks says about its models."""

from __future__ import annotations

from treadle.demo.evolve.results import HeldOutRollout, ledger_figures


def test_each_model_has_a_row_of_shares_and_means() -> None:
    solved, failed = HeldOutRollout(True, 4), HeldOutRollout(False, 2)
    figures = ledger_figures({"start": {"a": [failed, failed], "b": [solved, failed]}, "mine": {"a": [solved]}})
    start, mine = (dict(zip(figures.header, row, strict=True)) for row in figures.rows)
    assert str(start["held-out tasks of the ledger"]).startswith("start (SmolLM2-135M")
    assert (start["tasks"], start["rollouts"], start["messages"]) == (2, 4, "2.50")
    assert str(start["solved % [95 %]"]).startswith("25.0 [")
    assert mine["held-out tasks of the ledger"] == "mine" and str(mine["solved % [95 %]"]).startswith("100.0 [")


def test_model_without_rollouts_has_unknown_figures() -> None:
    (row,) = ledger_figures({"policy": {}}).rows
    assert row[1:] == (0, 0, "?", "?")
