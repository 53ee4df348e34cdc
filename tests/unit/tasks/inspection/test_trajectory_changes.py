"""The changes of an edit are shown segment by segment: kept steps folded, the rest marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from treadle.cli.views.changes import changes_view
from treadle.tasks.inspection.trajectory_changes import Changes, Piece, changes_between


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


def test_whole_steps_at_the_beginning_are_folded_and_a_step_that_was_begun_alike_is_not() -> None:
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


def test_thoughts_that_were_rewritten_stand_beside_calls_that_were_kept() -> None:
    shorter = ("think", "<think>Look.</think>")
    changes = changes_between(segments(THINK, SEARCH, RESULT, ANSWER), segments(shorter, SEARCH, RESULT, ANSWER))
    assert changes == Changes(
        0,
        (
            Piece("removed", *THINK),
            Piece("added", *shorter),
            Piece("same", *SEARCH),
            Piece("same", *RESULT),
            Piece("same", *ANSWER),
        ),
    )


def test_a_thought_that_was_gone_on_with_shows_only_what_is_new() -> None:
    longer = ("think", THINK[1].removesuffix("</think>") + " Wait, once more.</think>")
    out = shown(segments(THINK, ANSWER), segments(longer, SEARCH, RESULT, ANSWER))
    assert "+ … Wait, once more.</think>" in out and "+ <search>x</search>" in out and out.count("I look it up") == 0


def test_a_twin_has_no_pieces_and_hostile_text_stays_harmless() -> None:
    assert changes_between(segments(THINK, ANSWER), segments(THINK, ANSWER)).pieces == ()
    out = shown(segments(ANSWER), segments(("answer", "<answer>\x1b[2J[red]\u202e</answer>")))
    assert "\x1b[2J" not in out and "\\x1b[2J[red]\\u202e" in out
