"""What the pages of the viewer say, to whom they are shown, and that hostile text stays text in all of them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.score_tables import new_run, put_rows, put_tables
from support.viewer_run import (
    ANSWER,
    KIN,
    RESULT,
    SEARCH,
    THINK,
    agent_row,
    example_run,
    filled,
    judgement_row,
    put_from,
    question_row,
)

from treadle.core import schemas
from treadle.core.errors import ConfigError
from treadle.core.runs import Run
from treadle.eval.viewer import app as app_module
from treadle.eval.viewer.app import make_app
from treadle.eval.viewer.server import listen
from treadle.flows.warnings import show_warnings

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
SHOWN = ("/", "/trajectory/1/pools/p2", "/changes/1/pools/p2", "/lineage/1/pools/p2", "/trajectory/1/rollouts@base/r1")


def client(run: Run, **options: Any) -> TestClient:
    return TestClient(make_app(run, KIN, fresh_s=0), base_url="http://127.0.0.1:8484", **options)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    yield client(example_run(tmp_path_factory.mktemp("run")))


def text_of(page: str) -> str:
    """What a page says, in one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_a_page_tells_the_verdict_with_all_that_judges_said(viewer: TestClient) -> None:
    said = text_of(viewer.get("/trajectory/1/rollouts@base/r1").text)
    assert "right by qa f1 prediction Ilme score 1.00" in said
    assert "needless calls 2 yes · 7 no · 1 without a vote" in said
    assert "tutor right, parsed It names the Ilme. VERDICT: right" in said
    assert "accepted Ilme" in said and "7 of 11" in said
    wrong = text_of(viewer.get("/trajectory/1/pools/p1").text)
    assert "wrong by model prediction Arn" in wrong and "The Arn is another river. VERDICT: wrong" in wrong
    assert "the checker ended early" in text_of(viewer.get("/trajectory/1/rollouts@base/r4").text)
    assert "the endpoint went away" in text_of(viewer.get("/trajectory/1/rollouts@base/r5").text)


def test_a_page_tells_each_vote_on_needless_calls(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r1").text
    said = text_of(page)
    assert "tutor 10 replies to “any needless call?” The call for Vorna was of use (0). &lt;answer&gt;no" in said
    assert [said.count(f"was of use ({place})") for place in range(8)] == [1] * 7 + [0]
    assert said.count("&lt;answer&gt;yes&lt;/answer&gt;") == 2 and "perhaps" in said
    assert page.count('<details class="judge"><summary>') == 2  # Both are folded.
    assert [one["kind"] for one in viewer.get("/json/1/rollouts@base/r1").json()["judgements"]] == [
        "correctness", "redundancy",
    ]  # fmt: skip
    assert "needless" not in text_of(viewer.get("/trajectory/1/rollouts@base/r2").text)


def test_what_was_judged_once_is_told_of_all_that_it_is_about(tmp_path: Path) -> None:
    run, parts = new_run(tmp_path), (THINK, SEARCH, RESULT, ANSWER)
    other = (THINK, SEARCH, RESULT, SEARCH, RESULT, ANSWER)
    rows = [
        agent_row(schemas.ROLLOUTS, key, "q1", *segments)
        for key, segments in (("a", parts), ("same", parts), ("other", other))
    ]
    made = put_rows(run, "1/rollouts@base", schemas.ROLLOUTS, rows)
    raw = {"verdict": None, "status": "failed", "raw": []}
    fixed = {"question_key": "q1", "prediction": "Ilme", "scorer": "judge", "judges": json.dumps({"tutor": raw})}
    votes = {"votes_yes": 1, "votes_no": 0, "votes_abstained": 1}
    scores = [filled(schemas.SCORES, rollout_key=row["rollout_key"], **fixed, **votes) for row in rows]
    judgements = [
        judgement_row("correctness", "a", "q1", [], prediction="Ilme", error="the prompt is too long"),
        judgement_row("correctness", "x", "q1", [], judgement_key="x", prediction="Arn", error="about another answer"),
        judgement_row("redundancy", "a", "q1", ["yes, the first"], error="the window is too small"),
        judgement_row("redundancy", "other", "q1", ["yes, the second"], judge="voter"),
    ]
    put_from(run, "1/scores@base", {"scores": scores, "judgements": judgements}, {"rollouts": made})
    viewer = client(run)
    said = {key: text_of(viewer.get(f"/trajectory/1/rollouts@base/{key}").text) for key in ("a", "same", "other")}
    for key in ("a", "same"):
        assert "tutor 1 reply to “any needless call?” yes, the first the window is too small" in said[key]
    assert "voter 1 reply to “any needless call?” yes, the second" in said["other"] and "the first" not in said["other"]
    for text in said.values():
        assert "It said nothing. the prompt is too long" in text and "another answer" not in text


def test_a_page_tells_the_parts_of_a_reward(viewer: TestClient) -> None:
    said = text_of(viewer.get("/trajectory/1/rl@phase-1/3.1.g%2F7%3F").text)
    assert "reward −1.000 correctness × calls × length + format correctness 0.400 of the answer" in said
    assert "calls 0.900 1 call length 1.000 120 tokens format −1.000 no box, order" in said
    assert "Made from 1 rollout, step 3" in said
    assert "Reward" not in text_of(viewer.get("/trajectory/1/pools/p1").text)


def test_trajectories_of_the_same_question_are_linked_across_instances(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r1?verdict=right").text
    said = text_of(page)
    assert "Same question 1 rollout, sample 1 wrong" in said
    assert "Same question elsewhere 6 1/pools: initial wrong · 1 call 1/pools: hint tail, round 1 right" in said
    assert "1/rl@phase-1: rollout, step 3 right · 1 call 1/rl@phase-1: branch, step 3 partly right" in said
    # All of the question, whatever the list was narrowed to.
    assert '<a href="/?question=q1">List all of this question</a>' in page
    assert "Same question elsewhere" not in text_of(viewer.get("/trajectory/1/rollouts@base/r3").text)


def test_what_was_searched_for_is_marked_and_its_results_are_unfolded(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r3?q=KEYerror").text
    assert re.findall(r"<details( open)?><summary>", page) == ["", " open"]
    assert page.count("<mark>KeyError</mark>") == 2  # Its first line, and all of it.
    asked = viewer.get("/trajectory/1/rollouts@base/r3?q=the+arn").text
    assert "How many bridges cross <mark>the Arn</mark>?</h1>" in asked
    assert "<mark>" not in viewer.get("/trajectory/1/rollouts@base/r3?q=e").text


def test_segments_are_told_apart_and_calls_have_their_outcomes(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r3").text
    kinds = re.findall(r'<li id="s\d+" class="segment kind-(\w+)"', page)
    assert kinds == ["think", "search", "result", "python", "result"]
    assert re.findall(r'class="outcome (\w+)">(\w+)', page) == [("ok", "ok"), ("bad", "timeout")]
    assert page.count("<details><summary>") == 2  # The results are folded.


def test_what_fine_tuning_learns_is_marked_where_it_is_known(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/pools/p2").text
    assert re.findall(r"learnt-(\w+)", page) == ["all", "all", "none", "all", "all"]
    assert 'id="masks"' in page and "41 of 56" in text_of(page)
    assert 'id="masks"' not in viewer.get("/trajectory/1/pools/p1").text


def test_changes_are_told_word_by_word(viewer: TestClient) -> None:
    page = viewer.get("/changes/1/pools/p2").text
    assert "Step 1 is as in its parent" in page
    assert re.findall(r"<del>(.*?)</del>|<ins>(.*?)</ins>", page) == [
        ("Arn", ""), ("", "Ilme, says the first"), ("Arn", ""), ("", "Ilme"),
    ]  # fmt: skip
    assert "+ answer came, 3 characters Arn" in text_of(viewer.get("/changes/1/rl@phase-1/3.1.g%2F7%3F").text)
    assert "made from nothing else" in viewer.get("/changes/1/pools/p1").text


def test_lineage_leads_from_the_source_to_all_that_was_made(viewer: TestClient) -> None:
    page = viewer.get("/lineage/1/pools/p2").text
    said = text_of(page)
    assert "source world.jsonl, row 1" in said and "rejected: no step number its reply I would begin anew." in said
    assert "right by qa f1 · answered · 1 call · fine-tuning row" in said
    assert set(re.findall(r'href="(/trajectory/1/pools/[^"]+)"', page)) == {
        f"/trajectory/1/pools/{key}" for key in ("p1", "p2", "p3")
    }
    assert "trained on by 1/rl@phase-1" in text_of(viewer.get("/lineage/1/rl@phase-1/3.0.g%2F7%3F").text)


def test_every_link_of_every_page_leads_somewhere(viewer: TestClient) -> None:
    waiting, seen = ["/"], {"/"}
    while waiting:
        path = waiting.pop()
        answer = viewer.get(path)
        assert answer.status_code == 200, path
        if "html" in answer.headers["content-type"]:
            found = {link.replace("&amp;", "&") for link in re.findall(r'(?:href|src)="([^"#][^"]*)"', answer.text)}
            assert all(link.startswith("/") and not link.startswith("//") for link in found)
            # Lists are filtered further in as many ways as there are; one filter is enough.
            new = {link for link in found - seen if path == "/" or "?" not in link}
            waiting += new
            seen |= new
    assert len(seen) > 60


def test_next_and_previous_stay_within_what_was_found(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r2?verdict=wrong").text
    assert re.findall(r'rel="(up|prev|next)" href="([^"]+)"', page) == [
        ("up", "/?verdict=wrong"),
        ("prev", "/trajectory/1/pools/p1?verdict=wrong"),
        ("next", "/trajectory/1/rollouts@base/r3?verdict=wrong"),
    ]


@pytest.mark.parametrize(
    "path", ["/nothing", "/trajectory/1/pools/none", "/trajectory/9/pools/p1", "/trajectory/a/b/c", "/static/app.py",
             "/text/1/pools/p1?place=99", "/text/1/pools/p1?place=x", "/static/..%2fapp.py"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(viewer: TestClient, path: str) -> None:
    answer = viewer.get(path)
    assert answer.status_code == 404 and re.search(r"There is no [^<]+\.</p>", answer.text)
    assert '<a rel="up" href="/">' in answer.text


def test_data_is_given_as_json_and_text(viewer: TestClient) -> None:
    shown = viewer.get("/json/1/pools/p2").json()
    assert shown["row"]["edit_text"] == "Look at the first document again." and len(shown["segments"]) == 5
    answer = viewer.get("/text/1/pools/p2?place=1")
    assert answer.text == "<search>river through Vorna</search>"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8484", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.2", "",
             "127.0.0.1@evil.example", "[::2]:8484", "localhost:8484.evil.example"],
)  # fmt: skip
def test_another_name_of_this_machine_is_refused(viewer: TestClient, host: str) -> None:
    answer = viewer.get("/", headers={"host": host})
    assert answer.status_code == 421 and "Vorna" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8484", "localhost:9", "[::1]:8484", "localhost", "LOCALHOST:1"])
def test_its_own_names_are_answered(viewer: TestClient, host: str) -> None:
    assert viewer.get("/", headers={"host": host}).status_code == 200


def fetched(site: str, mode: str = "navigate", dest: str = "document") -> dict[str, str]:
    """What a browser says of a request."""
    return {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/?q=Vorna", fetched("cross-site", "no-cors", "image")),
        ("/", fetched("cross-site", "no-cors", "script")),
        ("/", fetched("same-site", "cors", "empty")),  # Another port of this machine.
        ("/", fetched("cross-site", "navigate", "iframe")),
        ("/?q=Vorna", fetched("cross-site")),
        ("/", {"sec-fetch-site": "cross-site"}),
        ("/", {"origin": "http://evil.example"}),
        ("/", {"origin": "http://127.0.0.1:9999"}),
        ("/", {"origin": "null"}),
    ],
)
def test_what_another_page_asks_for_is_refused(viewer: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = viewer.get(path, headers=headers)
    assert answer.status_code == 403 and "Vorna" not in answer.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/?q=Vorna", fetched("none")),
        ("/?q=Vorna", fetched("same-origin")),
        ("/static/viewer.js", fetched("same-origin", "no-cors", "script")),
        ("/trajectory/1/pools/p2", fetched("cross-site")),  # A link in a terminal that is a web page.
        ("/", {"origin": "http://127.0.0.1:8484"}),
        ("/", {}),
    ],
)
def test_its_own_pages_links_to_them_and_programs_are_answered(
    viewer: TestClient, path: str, headers: dict[str, str]
) -> None:
    assert viewer.get(path, headers=headers).status_code == 200


def test_every_answer_forbids_whatever_the_pages_do_not_need(viewer: TestClient) -> None:
    paths = ("/", "/nothing", "/static/viewer.js", "/json/1/pools/p2", "/text/1/pools/p2?place=1", SHOWN[1])
    for answer in [viewer.get(path) for path in paths] + [viewer.get("/", headers={"host": "evil.example"})]:
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "img-src", "form-action")} == {"'self'"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert viewer.post("/").status_code == 405


@pytest.mark.parametrize("path", ["/", "/nothing", "/json/1/pools/p2", "/text/1/pools/p2?place=1", *SHOWN[1:]])
def test_what_a_run_holds_stays_in_no_cache(viewer: TestClient, path: str) -> None:
    assert viewer.get(path).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost", "example.org"])
def test_no_other_address_is_listened_on(host: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1 or ::1 alone"):
        listen(host, 0)


def test_a_taken_port_is_told() -> None:
    with (
        listen("127.0.0.1", 0) as taken,
        pytest.raises(ConfigError, match="port [0-9]+: Address already in use; choose another --port"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])


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
    """A run in which this text stands wherever a model, a data set or a user may write any."""
    run = new_run(root)
    columns = {"dataset": payload, "model": payload, "operator": payload, "status": payload}
    asked = question_row("q1", payload, [payload, payload], choices=[payload, "x"], **{"dataset": payload})
    asked["source_file"] = payload
    put_rows(run, "1/questions", schemas.QUESTIONS, [asked])
    parts = [("think", payload), ("search", payload), ("result", payload), ("answer", payload)]
    made = put_rows(
        run, "1/rollouts@base", schemas.ROLLOUTS,
        [agent_row(schemas.ROLLOUTS, "r1", "q1", *parts, error=payload, **columns)],
    )  # fmt: skip
    said = json.dumps({payload: {"verdict": True, "status": payload, "raw": [payload]}})
    score = filled(
        schemas.SCORES, rollout_key="r1", question_key="q1", prediction=payload, correct=True, score=1.0,
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
        agent_row(schemas.POOLS, "p1", "q1", *parts, ("text", "other"), **pool),
        agent_row(schemas.POOLS, "p2", "q1", *parts, **{**pool, "parents": ["p1"], "sample_index": 1, "round": 1}),
    ]
    event = {"operator": payload, "outcome": "rejected", "reason": payload, "reply": payload, "error": payload}
    tables = {
        "pools": pools,
        "pool_questions": [
            filled(schemas.POOL_QUESTIONS, question_key="q1", status=payload, error=payload, usage="{}")
        ],
        "pool_events": [filled(schemas.POOL_EVENTS, question_key="q1", parent="p1", usage="{}", **event)],
    }
    put_tables(run, "1/pools", tables)
    return run


@pytest.fixture(scope="module")
def tame(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, ...]]]:
    """The elements of each page where the same text is a name."""
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
    # What a text says can be found by it, and its filters can be chosen.
    assert "p1" in viewer.get("/", params={"q": payload}).text
    assert "p1" in viewer.get("/", params={"dataset": payload}).text


def test_control_characters_are_seen(tmp_path: Path) -> None:
    page = client(hostile_run(tmp_path, "\x1b[2J\u202eabc\\x1b")).get("/trajectory/1/pools/p2").text
    assert r'<span class="escape">\x1b</span>[2J<span class="escape">\u202e</span>abc\x1b' in page


def test_ten_megabytes_of_text_are_shown_in_part_and_given_whole(tmp_path: Path) -> None:
    run, huge = new_run(tmp_path), "<b>" * 3_400_000
    put_rows(run, "1/questions", schemas.QUESTIONS, [question_row("q1", huge, [huge])])
    rows = [
        agent_row(schemas.ROLLOUTS, "a", "q1", ("think", huge), ("answer", "no")),
        agent_row(schemas.ROLLOUTS, "b", "q1", *[THINK, SEARCH] * 2000, ANSWER),
    ]
    put_rows(run, "1/rollouts@base", schemas.ROLLOUTS, rows)
    viewer = client(run)
    page = viewer.get("/trajectory/1/rollouts@base/a").text
    assert len(page) < 200_000 and "show all 10,200,000" in page
    assert len(viewer.get("/text/1/rollouts@base/a?place=0").text) == len(huge) + 15
    assert len(viewer.get("/").text) < 100_000
    assert viewer.get("/trajectory/1/rollouts@base/b").text.count('class="segment kind-') == 4001


def test_a_page_of_very_many_segments_is_bounded_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = [agent_row(schemas.ROLLOUTS, "a", "q1", *[("think", "")] * 6_234)]
    put_rows(run, "1/rollouts@base", schemas.ROLLOUTS, rows)
    viewer = client(run)
    page = viewer.get("/trajectory/1/rollouts@base/a").text
    assert page.count('class="segment kind-') == 5_000
    assert "1,234 further segments are in the JSON alone" in text_of(page)
    assert len(viewer.get("/json/1/rollouts@base/a").json()["segments"]) == 6_234


def test_what_nobody_foresaw_ends_with_a_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*arguments: Any) -> None:
        raise ValueError("\x1b[2Jbroken")

    run = example_run(tmp_path)
    caplog.clear()
    monkeypatch.setattr(app_module, "read_trajectory", broken)
    handler = show_warnings()  # As the command line does.
    try:
        answer = client(run, raise_server_exceptions=False).get("/trajectory/1/pools/p1")
    finally:
        logging.getLogger("treadle").removeHandler(handler)
    assert capsys.readouterr().err == "warning: a page failed: ValueError: \\x1b[2Jbroken\n"
    assert answer.status_code == 500 and "this page could not be made" in answer.text
    assert len(caplog.messages) == 1 and "broken" in caplog.messages[0] and "\x1b" not in caplog.messages[0]


@pytest.mark.parametrize("kind", ["questions", "scores", "judgements", "sft_rows"])
def test_a_trajectory_is_shown_without_what_has_changed_and_says_so(tmp_path: Path, kind: str) -> None:
    run = example_run(tmp_path)
    (ref,) = [record.outputs[kind] for record in run.records() if kind in record.outputs]
    (file,) = (tmp_path / ref.folder).glob("*.parquet")
    viewer = client(run)
    assert viewer.get("/").status_code == 200
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    said = text_of(viewer.get("/trajectory/1/" + ("pools/p2" if kind == "sft_rows" else "rollouts@base/r1")).text)
    assert f"{ref.folder}/{file.name} has changed since it was written" in said
    assert "I search for it." in said and "Facts ended answered" in said


def test_a_lineage_that_cannot_be_read_is_told_beside_the_trajectory(tmp_path: Path) -> None:
    run = example_run(tmp_path)
    (ref,) = [record.outputs["sft_rows"] for record in run.records() if "sft_rows" in record.outputs]
    (tmp_path / ref.folder / "artifact.json").unlink()
    viewer = client(run)
    said = text_of(viewer.get("/lineage/1/pools/p2").text)
    assert f"It cannot be told: artifact {ref.folder} is missing" in said and "Which river" in said
    assert "It must be the Ilme" in viewer.get("/trajectory/1/pools/p2").text


def test_the_lineage_of_a_trajectory_whose_question_is_not_there_says_so(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/rollouts@base", schemas.ROLLOUTS, [agent_row(schemas.ROLLOUTS, "a", "gone")])
    answer = client(run).get("/lineage/1/rollouts@base/a")
    assert answer.status_code == 200 and "It cannot be told: question gone is in no table" in text_of(answer.text)


def test_a_run_without_trajectories_says_so(tmp_path: Path) -> None:
    assert "This run has no finished trajectories yet." in client(new_run(tmp_path)).get("/").text
