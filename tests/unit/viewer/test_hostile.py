"""Hostile text stays text in all pages of the viewer."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.tables.score_tables import new_run, put_rows, put_tables
from support.tables.viewer_run import agent_row, client, dialogue_row, filled, judgement_row, put_from, question_row

from treadle.core.runs.run import Run
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES

UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
PAYLOADS = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x=\'',
    "' autofocus onfocus='alert(1)",
    "--><svg onload=alert(1)><!-- ]]></title></textarea></style></details>",
    "javascript:alert(1)//http://evil.example/",
    "{{ 7*7 }}{% for x in y %}{{ ''.__class__ }}${1}<%= 1 %>",
    "&lt;script&gt;&#60;b&#62;&amp;quot;",
    "\x1b[31mred\x1b[0m\x1b]8;;http://evil.example\x07link\x9b2J\r\x00\x7f",
    "\u202eabc\u202c\u2066x\u2069\u2028line\ufeff\U000e0041",
    "../../../etc/passwd%00%2e%2e?x=1&y=2#z",
)
SHOWN = (
    "/", "/trajectory/1/pools/p2", "/changes/1/pools/p2", "/lineage/1/pools/p2", "/trajectory/1/rollouts@base/r1",
    "/trajectory/1/rollouts@base/d1",
)  # fmt: skip


class Shape(HTMLParser):
    """Elements with the names of their attributes; marked escapes and the words of a diff, which text may have any
    number of, are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if ("class", "escape") in attrs or tag in ("ins", "del", "mark"):
            return
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]


def shape_of(page: str) -> Shape:
    shape = Shape()
    shape.feed(page)
    return shape


def hostile_run(root: Path, payload: str) -> Run:
    """Make a run with this text wherever a model, a dataset or a user can write any."""
    run = new_run(root)
    columns = {"dataset": payload, "model": payload, "operator": payload, "status": payload}
    asked = question_row("q1", payload, [payload, payload], choices=[payload, "x"], **{"dataset": payload})
    asked["source_file"] = payload
    dialogue = dialogue_row(
        "d1", "q1", ("text", payload), ("user", payload), ("tool", payload), ("frame", payload), (payload, payload),
        turn_rewards=[0.5, None], outcome=json.dumps({"reward": None, "success": None, "parts": {payload: 1.0}}),
        **columns,
    )  # fmt: skip
    put_rows(run, "1/questions", QUESTIONS, [asked])
    parts = [("think", payload), ("search", payload), ("result", payload), ("answer", payload)]
    called = {
        "tools": [{"tool": payload, "requested": 1, "executed": 0, "failed": 0}],
        "tool_calls": json.dumps([{"tool": payload, "argument": payload, "status": "refused", "turn": 0}]),
    }
    rows = [agent_row(ROLLOUTS, "r1", "q1", *parts, error=payload, **columns, **called), dialogue]
    made = put_from(run, "1/rollouts@base", {"rollouts": rows}, {}, environment=payload)
    said = json.dumps({payload: {"verdict": True, "status": payload, "raw": [payload]}})
    score = filled(
        SCORES, rollout_key="r1", question_key="q1", prediction=payload, correct=True, score=1.0,
        scorer=payload, error=payload, judges=said, votes_yes=1, votes_no=1, votes_abstained=1,
    )  # fmt: skip
    judgements = [
        judgement_row(kind, "r1", "q1", [payload], judge=payload, prediction=payload, error=payload)
        for kind in ("correctness", "redundancy")
    ]
    put_from(run, "1/scores@base", {"scores": [score], "judgements": judgements}, {"rollouts": made})
    judge = json.dumps({"method": payload, "raw": [payload], "error": payload})
    usage = {"policy": {"calls": 1, "prompt_tokens": 1, "completion_tokens": 1}}
    pool = {"judge": judge, "prediction": payload, "edit_text": payload, "error": payload, "correct": True,
            "models": json.dumps({"policy": payload}), "usage": json.dumps(usage), **columns}  # fmt: skip
    pools = [
        agent_row(POOLS, "p1", "q1", *parts, ("text", "other"), **pool),
        agent_row(POOLS, "p2", "q1", *parts, **{**pool, "parents": ["p1"], "sample_index": 1, "round": 1}),
    ]
    event = {"operator": payload, "outcome": "rejected", "reason": payload, "reply": payload, "error": payload}
    tables = {
        "pools": pools,
        "pool_questions": [filled(POOL_QUESTIONS, question_key="q1", status=payload, error=payload, usage="{}")],
        "pool_events": [filled(POOL_EVENTS, question_key="q1", parent="p1", usage="{}", **event)],
    }
    put_tables(run, "1/pools", tables)
    return run


@pytest.fixture(scope="module")
def tame(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, ...]]]:
    """Return the elements of each page for the same text used as a plain name."""
    viewer = client(hostile_run(tmp_path_factory.mktemp("tame"), "name"))
    return {path: shape_of(viewer.get(path).text).elements for path in SHOWN}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_text_adds_no_element_attribute_or_link(
    tmp_path: Path, payload: str, tame: dict[str, list[tuple[str, ...]]]
) -> None:
    # Parquet holds a null character, JSON escapes do too.
    viewer = client(hostile_run(tmp_path, payload))
    for path in SHOWN:
        answer = viewer.get(path)
        assert answer.status_code == 200
        shape = shape_of(answer.text)
        assert shape.elements == tame[path], path
        assert all(re.fullmatch(r"/[A-Za-z0-9/@._~%?=&+-]*|#[a-z0-9]+", link) for link in shape.links), shape.links
        assert not UNSHOWABLE.search(answer.text)
    found = viewer.get(SHOWN[1], params={"q": payload}).text
    assert "<mark>" in found and not UNSHOWABLE.search(found)
    assert [tag for tag, *_ in shape_of(found).elements] == [tag for tag, *_ in tame[SHOWN[1]]]
    for path in ("/text/1/pools/p2?place=0", "/json/1/pools/p2"):
        assert not UNSHOWABLE.search(viewer.get(path).text)
    # The text can be searched for, and its filters can be chosen.
    assert "p1" in viewer.get("/", params={"q": payload}).text
    assert "p1" in viewer.get("/", params={"dataset": payload}).text


def test_control_characters_are_visible(tmp_path: Path) -> None:
    page = client(hostile_run(tmp_path, "\x1b[2J\u202eabc\\x1b")).get("/trajectory/1/pools/p2").text
    assert r'<span class="escape">\x1b</span>[2J<span class="escape">\u202e</span>abc\x1b' in page
