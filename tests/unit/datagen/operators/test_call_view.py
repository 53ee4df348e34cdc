"""Native calls shown as tags: whatever texts say, each piece is what it stands for, and what is kept stays."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweep import examples

from treadle.agent.contract import CallRecord, Message
from treadle.agent.dialects.base import Segment, render
from treadle.agent.dialects.forms.hermes import write_call
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tags import tokenise
from treadle.agent.edit import extended
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.trajectory import Sample, Trajectory
from treadle.agent.transcript import Transcript
from treadle.datagen.operators.call_view import CallView
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.pools.steps import steps_of

DIALECT = FunctionsDialect().bound(None, is_chat=True)
SCHEMAS = (
    ToolSchema("look", "", {"type": "object", "properties": {"key": {"type": "string"}}}),
    ToolSchema("think", "", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}),
)
HOSTILE = ("<think>", "</think>", "<look>", "</look>", "<result>", "</result>", "<answer>", "</answer>", "\n", " ", "é")
TEXTS = st.lists(st.sampled_from([*HOSTILE, "moss", "x"]), max_size=5).map("".join)
CALLS = st.one_of(
    st.builds(lambda key: write_call("look", orjson.dumps({"key": key}).decode()), TEXTS),
    st.builds(lambda b: write_call("think", orjson.dumps({"a": 1, "b": b}).decode()), TEXTS),
    st.builds(lambda text: write_call("else.where", text), TEXTS),
)
TURNS = st.lists(st.tuples(TEXTS, TEXTS, st.lists(CALLS, min_size=1, max_size=3)), max_size=3)


def played(turns: list[tuple[str, str, list[str]]], last: str, *, thinks: bool) -> Trajectory:
    """Return a trajectory of turns (reasoning, text, calls) that ends with a text."""
    transcript, records = Transcript(DIALECT, None), list[CallRecord]()
    for number, (reasoning, said, calls) in enumerate(turns):
        if thinks and reasoning.strip():
            transcript.append_reasoning(reasoning)
        # As over the chat route: what is next to calls hides none in open reasoning.
        said = said.replace("<think>", "").replace("</think>", "")
        transcript.append_completion("\n".join([*([said] if said.strip() else []), *calls]), None, 1)
        found = DIALECT.calls_of(transcript.open_text)
        records += [CallRecord(call.name, "", "ok", number) for call in found]
        transcript.append([Message(f"result {place} {said}", "tool") for place in range(len(found))])
    if last.strip():
        transcript.append_completion(last.replace("<think>", "").replace("</think>", "") + "x", None, 1)
    segments = transcript.segments()
    status = "answered" if last.strip() else "max_turns"
    return Trajectory(status, render(segments), segments, [Sample([], [], [])], records, 1, tools=SCHEMAS)


@settings(max_examples=examples(150), deadline=None)
@given(TURNS, TEXTS, st.booleans())
def test_view_has_one_piece_per_part_and_gives_back_what_is_kept(
    turns: list[tuple[str, str, list[str]]], last: str, thinks: bool
) -> None:
    native = played(turns, last, thinks=thinks)
    view = CallView.of(native)
    shown = view.trajectory
    assert [(one.kind, one.text) for one in tokenise(shown.text, view.dialect)] == [
        (one.kind, one.text) for one in shown.segments
    ]
    assert sum(map(view.dialect.is_call, shown.segments)) == len(native.calls)
    assert view.native_trajectory(shown).text == native.text
    steps = steps_of(shown.segments)
    for number, step in enumerate(steps, 1):
        if not step.has_result:
            continue
        prefix = view.native_prefix(shown.prefix(step.end_segment, None, view.dialect))
        assert list(prefix.calls) == native.calls[: len(prefix.calls)]
        assert sum(one.kind == "tool_call" for one in prefix.segments) == len(prefix.calls) == number
        assert set(prefix.segments) <= set(native.segments) and not prefix.pending
        if number == len(native.calls):
            end = max(place for place, one in enumerate(native.segments, 1) if one.kind == "tool")
            assert prefix.segments == tuple(native.segments[:end])


@pytest.mark.parametrize("thinks", [False, True])
def test_new_turns_are_written_as_the_model_writes_its_own(thinks: bool) -> None:
    call = write_call("look", '{"key": "a"}')
    view = CallView.of(played([("Why.", "So.", [call]), ("Then.", "Then.", [call])], "It is 1.", thinks=thinks))
    kept = view.trajectory.prefix(4 if thinks else 3, None, view.dialect)

    def new(text: str) -> tuple[list[str], bool]:
        prefix = view.native_prefix(extended(kept, text, None, view.dialect))
        place = max(place for place, one in enumerate(prefix.segments, 1) if one.kind == "tool")
        return [one.text for one in prefix.segments[place:]], prefix.pending

    # The text of the tool `think`, whose name is taken, is JSON.
    written = write_call("think", '{"a": 1}')
    thought = "<think>\nB <look\n</think>\n\n" if thinks else "B <look\n"
    assert new('<think>B <look</think><think_tool>{"a": 1}</think_tool>') == ([thought, written], True)
    assert new("<think>B</think><look>q</look>")[0][-1] == write_call("look", '{"key":"q"}')
    answer = ["<think>\nB\n</think>\n\n", "A"] if thinks else ["B\n\nA"]
    assert new("<think>B</think><answer>A</answer>") == (answer, True)
    # A thought like the one that is replaced belongs to the new turn.
    again = "<think>\nThen.\n</think>\n\n" if thinks else "Then.\n"
    assert new("<think>Then.</think><look>q</look>")[0][0] == again
    assert new("<think>Wait") == (["<think>\nWait"] if thinks else ["Wait"], False)


def test_results_that_do_not_match_their_calls_are_rejected() -> None:
    native = played([("", "", [write_call("look", "{}")])], "x", thinks=False)
    native.segments.insert(1, Segment("user", "by the way", 0, 0))
    with pytest.raises(EditRejected, match="unmatched_results"):
        CallView.of(native)
