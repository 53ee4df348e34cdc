"""Pages of a dialogue next to the wanted one, from the ledger and the score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tables.score_tables import new_run, put_rows
from support.tables.viewer_run import client, dialogue_row, question_row

from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.viewer.dialogue.page_pictures import ShownPage, page_pictures

ONE, TWO, TARGET = "1" * 32, "2" * 32, "a" * 32


def call(tool: str, turn: int, note: str) -> dict[str, object]:
    facts = {"argument": "", "status": "ok", "result_chars": 0}
    return {"id": f"t{turn}.{tool}_0", "tool": tool, "turn": turn, "note": note, **facts}


CALLS = [
    call("target", 0, f"picture {TARGET}"),
    call("page", 0, f"picture {ONE}"),
    call("page", 1, "the message has no page"),
    call("page", 2, f"picture {TWO}, its closing tag was missing"),
]


def test_each_turn_has_its_picture_and_its_similarity() -> None:
    rows = [{"turn": 0, "similarity": 0.5}, {"turn": 1, "similarity": None}, {"turn": 2, "similarity": 0.75}]
    found = page_pictures(CALLS, {"detail": json.dumps({"measure": "clip (x), whole page", "pages": rows})})
    assert found is not None and (found.target, found.measure) == (TARGET, "clip (x), whole page")
    assert list(found.pages) == [
        ShownPage(1, ONE, "", 0.5),
        ShownPage(2, "", "the message has no page", None),
        ShownPage(3, TWO, "its closing tag was missing", 0.75),
    ]


@pytest.mark.parametrize("score", [None, {"detail": ""}, {"detail": "[]"}, {"detail": '{"pages": 3}'}])
def test_pages_are_shown_without_a_score(score: dict[str, str] | None) -> None:
    found = page_pictures(CALLS, score)
    assert found is not None and [one.similarity for one in found.pages] == [None] * 3 and not found.measure


def test_other_rollouts_have_no_pages() -> None:
    assert page_pictures([call("search", 0, f"picture {ONE}")], None) is None
    assert page_pictures([call("target", 0, "picture ../../x")], None) is None


def test_hidden_page_shows_both_pictures_and_the_agents_page_does_not_show_the_target(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    task = {**question_row("q1", "A page."), "payload": '{"page": "<html>x</html>"}'}
    put_rows(run, "1/questions", QUESTIONS, [task])
    row = dialogue_row("d1", "q1", ("text", "<html>y</html>"), ("user", "Bigger."), tool_calls=json.dumps(CALLS))
    put_rows(run, "1/rollouts@base", ROLLOUTS, [row])
    viewer = client(run)
    shown = viewer.get("/hidden/1/rollouts@base/d1")
    assert shown.status_code == 200
    assert shown.text.count(f'src="/picture/{TARGET}"') == 3 and f'src="/picture/{ONE}"' in shown.text
    assert "its closing tag was missing" in shown.text
    assert f'src="/picture/{TARGET}"' not in viewer.get("/trajectory/1/rollouts@base/d1").text
