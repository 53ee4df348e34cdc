"""Turns of free text, which only a marker or the model itself ends."""

from __future__ import annotations

from treadle.agent.contract import Message, ModelTurn
from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.free import FreeDialect

DIALECT = FreeDialect(("###STOP###", "DONE"))


def test_text_after_the_earliest_marker_is_cut() -> None:
    assert DIALECT.cut("a DONE b ###STOP### c") == "a DONE"
    assert DIALECT.cut("<answer>x</answer> y") == "<answer>x</answer> y"
    assert FreeDialect().cut("a DONE b") == "a DONE b" and not FreeDialect().is_stopped("a DONE")


def test_turn_is_one_segment_without_calls() -> None:
    text = "<search>q</search> DONE"
    (segment,) = DIALECT.segments(text)
    assert segment == Segment("text", text, 0, len(text)) and DIALECT.segments("") == []
    assert DIALECT.is_acted_on(segment) and not DIALECT.is_call(segment)
    assert DIALECT.read(text, 2, "stop") == ModelTurn(text, 2, "stop", calls=())
    assert DIALECT.result("<search>") == Message("<search>", "user")
