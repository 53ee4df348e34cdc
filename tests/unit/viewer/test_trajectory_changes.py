"""The changes of an edit are shown segment by segment: kept steps folded, the rest marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from treadle.cli.views.trajectory import changes_view
from treadle.viewer.changes.trajectory_changes import ChangedSegment, TrajectoryChanges, changes_between


def segments(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"kind": kind, "text": text} for kind, text in pairs]


THINK = ("think", "<think>I look it up, since I do not know it.</think>")
SEARCH, RESULT = ("search", "<search>x</search>"), ("result", "<result>X is 1.</result>")
ANSWER = ("answer", "<answer>\\boxed{1}</answer>")


def shown(parent: Sequence[dict[str, str]], edited: Sequence[dict[str, str]]) -> str:
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(changes_view(changes_between(parent, edited), {"rollout_key": "aaaa"}))
    return capture.get()


def test_equal_leading_steps_are_folded_but_not_partially_equal_ones() -> None:
    step = (THINK, SEARCH, RESULT)
    parent = segments(*step, *step, THINK, ANSWER)
    edited = segments(*step, *step, THINK, ("answer", "<answer>\\boxed{2}</answer>"))
    changes = changes_between(parent, edited)
    assert changes.num_steps == 2
    assert [(piece.side, piece.kind) for piece in changes.pieces] == [
        ("same", "think"),
        ("removed", "answer"),
        ("added", "answer"),
    ]
    assert "  steps 1-2 as in aaaa" in shown(parent, edited)


def test_rewritten_thoughts_are_shown_with_kept_calls() -> None:
    shorter = ("think", "<think>Look.</think>")
    changes = changes_between(segments(THINK, SEARCH, RESULT, ANSWER), segments(shorter, SEARCH, RESULT, ANSWER))
    assert changes == TrajectoryChanges(
        0,
        (
            ChangedSegment("removed", *THINK),
            ChangedSegment("added", *shorter),
            ChangedSegment("same", *SEARCH),
            ChangedSegment("same", *RESULT),
            ChangedSegment("same", *ANSWER),
        ),
    )


def test_continued_thought_shows_only_the_new_part() -> None:
    longer = ("think", THINK[1].removesuffix("</think>") + " Wait, once more.</think>")
    out = shown(segments(THINK, ANSWER), segments(longer, SEARCH, RESULT, ANSWER))
    assert "+ … Wait, once more.</think>" in out and "+ <search>x</search>" in out and out.count("I look it up") == 0


def test_duplicate_has_no_changes_and_hostile_text_stays_harmless() -> None:
    assert changes_between(segments(THINK, ANSWER), segments(THINK, ANSWER)).pieces == ()
    out = shown(segments(ANSWER), segments(("answer", "<answer>\x1b[2J[red]\u202e</answer>")))
    assert "\x1b[2J" not in out and "\\x1b[2J[red]\\u202e" in out
