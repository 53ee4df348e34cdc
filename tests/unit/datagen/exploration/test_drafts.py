"""Tasks are read from a model's summary; what is no task is left out, and no two tasks share an object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.datagen.exploration.drafts import Draft, read_summary


def item(**changes: Any) -> dict[str, Any]:
    return {"query": "Pay it.", "reference": ["look", "pay"], "confidence": 0.5, **changes}


@pytest.mark.covers("service-29")
def test_three_tasks_of_one_summary_are_distinct() -> None:
    items = [item(query=f"Task {number}.", reference=[f"act {number}"], confidence=number / 4) for number in (1, 2, 3)]
    summary = read_summary(f"Sure [1]:</think> Here:\n```json\n{json.dumps(items)}\n```\nDone.", "s", 2)
    assert summary is not None and summary.num_refused == 0
    assert summary.drafts == tuple(
        Draft("s", f"Task {number}.", (f"act {number}",), number / 4, 2) for number in (1, 2, 3)
    )
    assert len({draft.key for draft in summary.drafts}) == 3
    assert [Draft.from_json(draft.as_json()) for draft in summary.drafts] == list(summary.drafts)


@pytest.mark.parametrize(
    "bad",
    [
        item(reference=[]), item(reference=["  "]), item(reference=None), item(reference=[1]), item(query=" "),
        item(query=3), item(confidence="high"), item(confidence=1.5), item(confidence=-0.1), item(confidence=True),
        item(query="x" * 4001), item(reference=["x"] * 101), item(reference=["x" * 20_001]), "Pay it.", None,
        {"query": "Pay it.", "confidence": 0.5},
    ],
)  # fmt: skip
def test_item_without_query_reference_or_confidence_is_refused(bad: Any) -> None:
    summary = read_summary(json.dumps([item(), bad, item(confidence=float("nan"))]), "s", 0)
    assert summary is not None and (len(summary.drafts), summary.num_refused) == (1, 2)


def test_equal_tasks_count_once_and_lines_are_actions() -> None:
    summary = read_summary(json.dumps([item(), item(reference="look\n\npay"), item(confidence=0.9)]), "s", 0)
    assert summary is not None and [draft.reference for draft in summary.drafts] == [("look", "pay")]


@pytest.mark.parametrize("text", ["", "I cannot.", '{"query": "Pay it."}', "[1, 2", "]["])
def test_reply_without_a_list_cannot_be_read(text: str) -> None:
    assert read_summary(text, "s", 0) is None


def test_hostile_text_is_kept_as_text() -> None:
    summary = read_summary('[{"query": "a\\u0000b\\ud800", "reference": ["x"], "confidence": 1}]', "s", 0)
    assert summary is not None and "\0" not in summary.drafts[0].query
    summary.drafts[0].query.encode()
