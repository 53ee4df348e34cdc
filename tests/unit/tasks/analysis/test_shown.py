"""What a notebook shows of a trajectory never runs, and never grows without bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.tasks.analysis.shown import MOST_SEGMENT_CHARS, MOST_SEGMENTS, trajectory_html


def page(text: str, segments: int = 1) -> str:
    question = {"question": text, "answers": [text]}
    rollout = {"model": text, "status": "answered"}
    score = {"prediction": text, "correct": True}
    return trajectory_html(rollout, question, score, [{"kind": "reasoning", "text": text}] * segments)


@given(st.text(alphabet="<>&'\"/ascriptonload=") | st.text())
def test_texts_never_become_markup(text: str) -> None:
    shown, plain = page(text), page("x")
    assert shown.count("<") == plain.count("<") and shown.count(">") == plain.count(">")


def test_long_trajectories_are_cut() -> None:
    shown = page("<" * (MOST_SEGMENT_CHARS + 7), segments=MOST_SEGMENTS + 3)
    assert "7 more characters" in shown and "3 more segments" in shown
    assert shown.count("&lt;") == MOST_SEGMENT_CHARS * (MOST_SEGMENTS + 4)


def test_missing_verdicts_are_marked() -> None:
    shown = trajectory_html({"model": "m", "status": "s"}, {"question": "q", "answers": None}, None, [])
    assert "prediction" not in shown and "gold answers" in shown
