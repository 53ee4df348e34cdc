"""Content and limits of the viewer's pages, and their messages about unreadable data."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.pictures import png
from support.tables.page_runs import Scored, counted_run
from support.tables.score_tables import new_run, put_rows, score
from support.tables.viewer_run import (
    ANSWER,
    RESULT,
    SEARCH,
    THINK,
    agent_row,
    client,
    example_run,
    filled,
    judgement_row,
    put_from,
    question_row,
)
from support.web.web_entries import page_of, search_of

from treadle.cli.warnings import show_warnings
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.planning.tools.pictures import MEDIA_TYPES, PICTURES, read_picture
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.viewer import app as app_module
from treadle.web.record.stored_entries import WEB_STORE, packed


def text_of(page: str) -> str:
    """Return the text of a page, in one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    yield client(example_run(tmp_path_factory.mktemp("run")))


def test_page_shows_the_verdict_with_all_judge_replies(viewer: TestClient) -> None:
    said = text_of(viewer.get("/trajectory/1/rollouts@base/r1").text)
    assert "right by qa f1 prediction Ilme score 1.00" in said
    assert "needless calls 2 yes · 7 no · 1 without a vote" in said
    assert "tutor right, parsed It names the Ilme. VERDICT: right" in said
    assert "accepted Ilme" in said and "7 of 11" in said
    wrong = text_of(viewer.get("/trajectory/1/pools/p1").text)
    assert "wrong by model prediction Arn" in wrong and "The Arn is another river. VERDICT: wrong" in wrong
    assert "the checker ended early" in text_of(viewer.get("/trajectory/1/rollouts@base/r4").text)
    assert "the endpoint went away" in text_of(viewer.get("/trajectory/1/rollouts@base/r5").text)


def test_turns_and_measured_seconds_are_shown_and_sorted_by(tmp_path: Path) -> None:
    """The second rollout was resumed: its log has only the seconds of the last attempt."""
    rows = [score(f"r{number}", f"q{number}", True, num_turns=number + 2) for number in range(3)]
    made = client(counted_run(tmp_path, "run", [Scored(rows, [(4.25, 2.0, 1.0), (1.0, 3.0, 1.0), (9.5, 2.0, 1.0)])]))
    found = made.get("/", params={"sort": "-seconds"}).text
    cells = re.findall(r'<td class="num">([^<]*)</td>', found[found.index("</thead>") :])
    width = len(cells) // 3
    assert [(cells[place + 1], cells[place + width - 1]) for place in range(0, len(cells), width)] == [
        ("4", "9.5"), ("2", "4.2"), ("3", "–"),
    ]  # fmt: skip
    shown = text_of(made.get("/trajectory/1/rollouts@model0/r0").text)
    assert "turns 2 seconds 4.25" in shown
    assert "seconds" not in text_of(made.get("/trajectory/1/rollouts@model0/r1").text)


def test_page_shows_each_vote_on_needless_calls(viewer: TestClient) -> None:
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


def test_page_shows_the_choice_among_attempts(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = [agent_row(ROLLOUTS, key, "q1", THINK, ANSWER) for key in ("a", "b", "c")]
    made = put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    states = ("passed_over", "picked", None)
    scores = [
        filled(SCORES, rollout_key=row["rollout_key"], question_key="q1", judges="{}", best_of=state)
        for row, state in zip(rows, states, strict=True)
    ]
    choice = judgement_row("best_of", "a", "q1", ["<choice>2</choice>"], error=None)
    put_from(run, "1/scores@base", {"scores": scores, "judgements": [choice]}, {"rollouts": made})
    shown = [text_of(client(run).get(f"/trajectory/1/rollouts@base/{key}").text) for key in "abc"]
    assert "among the attempts passed over" in shown[0] and "among the attempts picked" in shown[1]
    assert all("&lt;choice&gt;2" in text for text in shown[:2]) and "attempts" not in shown[2]


def test_page_shows_which_web_pages_a_call_returned(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    search, page, unknown = search_of("x"), page_of("http://site.test/<b>\u202e"), "0" * 32
    for entry in (search, page):
        run.store(WEB_STORE).add(entry.key, packed(entry))
    fixed = {"tool": "search", "argument": "x", "status": "ok", "turn": 0, "result_chars": 1}
    calls = [{**fixed, "sources": [search.key, page.key]}, {**fixed, "sources": [unknown]}]
    row = agent_row(ROLLOUTS, "r", "q1", SEARCH, RESULT, SEARCH, RESULT, ANSWER, tool_calls=json.dumps(calls))
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Who?")])
    put_rows(run, "1/rollouts@base", ROLLOUTS, [row])
    shown = client(run).get("/trajectory/1/rollouts@base/r").text
    assert "http://site.test/&lt;b&gt;" in shown and f"web entry {unknown}" in shown
    assert "\u202e" not in shown and search.key not in text_of(shown)


def test_shared_verdict_is_shown_for_every_equal_answer(tmp_path: Path) -> None:
    run, parts = new_run(tmp_path), (THINK, SEARCH, RESULT, ANSWER)
    other = (THINK, SEARCH, RESULT, SEARCH, RESULT, ANSWER)
    rows = [
        agent_row(ROLLOUTS, key, "q1", *segments) for key, segments in (("a", parts), ("same", parts), ("other", other))
    ]
    made = put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    raw = {"verdict": None, "status": "failed", "raw": []}
    fixed = {"question_key": "q1", "prediction": "Ilme", "scorer": "judge", "judges": json.dumps({"tutor": raw})}
    votes = {"votes_yes": 1, "votes_no": 0, "votes_abstained": 1}
    scores = [filled(SCORES, rollout_key=row["rollout_key"], **fixed, **votes) for row in rows]
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
        assert "No reply. the prompt is too long" in text and "another answer" not in text


def test_page_shows_the_reward_components(viewer: TestClient) -> None:
    said = text_of(viewer.get("/trajectory/1/rl@phase-1/3.1.g%2F7%3F").text)
    assert "reward −1.000 no box, order score 0.400 of the verdict f format −1.000 f len 1.000 f tool 0.900" in said
    assert "Parent 1 rollout, step 3" in said
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


def test_search_terms_are_highlighted_and_their_results_unfolded(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r3?q=KEYerror").text
    assert re.findall(r"<details( open)?><summary>", page) == ["", " open"]
    assert page.count("<mark>KeyError</mark>") == 2  # Its first line, and all of it.
    asked = viewer.get("/trajectory/1/rollouts@base/r3?q=the+arn").text
    assert "How many bridges cross <mark>the Arn</mark>?</h1>" in asked
    assert "<mark>" not in viewer.get("/trajectory/1/rollouts@base/r3?q=e").text


def test_segments_are_distinguishable_and_calls_show_their_outcomes(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/rollouts@base/r3").text
    kinds = re.findall(r'<li id="s\d+" class="segment kind-([\w-]+)"', page)
    assert kinds == ["think", "call-3", "result", "call-0", "result"]
    assert re.findall(r'class="outcome (\w+)">(\w+)', page) == [("ok", "ok"), ("bad", "timeout")]
    assert page.count("<details><summary>") == 2  # The results are folded.


def test_trained_spans_are_marked_if_known(viewer: TestClient) -> None:
    page = viewer.get("/trajectory/1/pools/p2").text
    assert re.findall(r"learnt-(\w+)", page) == ["all", "all", "none", "all", "all"]
    assert 'id="masks"' in page and "41 of 56" in text_of(page)
    assert 'id="masks"' not in viewer.get("/trajectory/1/pools/p1").text


def test_changes_are_shown_word_by_word(viewer: TestClient) -> None:
    page = viewer.get("/changes/1/pools/p2").text
    assert "Step 1 is the same as in the parent" in page
    assert re.findall(r"<del>(.*?)</del>|<ins>(.*?)</ins>", page) == [
        ("Arn", ""), ("", "Ilme, says the first"), ("Arn", ""), ("", "Ilme"),
    ]  # fmt: skip
    assert "+ answer added, 3 characters Arn" in text_of(viewer.get("/changes/1/rl@phase-1/3.1.g%2F7%3F").text)
    assert "has no parent" in viewer.get("/changes/1/pools/p1").text


def test_lineage_links_the_source_to_all_derived_trajectories(viewer: TestClient) -> None:
    page = viewer.get("/lineage/1/pools/p2").text
    said = text_of(page)
    assert "source world.jsonl, row 1" in said and "rejected: no step number its reply I would begin anew." in said
    assert "right by qa f1 · answered · 1 call · fine-tuning row" in said
    assert set(re.findall(r'href="(/trajectory/1/pools/[^"]+)"', page)) == {
        f"/trajectory/1/pools/{key}" for key in ("p1", "p2", "p3")
    }
    assert "trained on by 1/rl@phase-1" in text_of(viewer.get("/lineage/1/rl@phase-1/3.0.g%2F7%3F").text)


def test_every_link_of_every_page_resolves(viewer: TestClient) -> None:
    waiting, seen = ["/"], {"/"}
    while waiting:
        path = waiting.pop()
        answer = viewer.get(path)
        assert answer.status_code == 200, path
        if "html" in answer.headers["content-type"]:
            found = {link.replace("&amp;", "&") for link in re.findall(r'(?:href|src)="([^"#][^"]*)"', answer.text)}
            assert all(link.startswith("/") and not link.startswith("//") for link in found)
            # Lists can be filtered in every combination; one filter is enough.
            new = {link for link in found - seen if path == "/" or "?" not in link}
            waiting += new
            seen |= new
    assert len(seen) > 60


def test_next_and_previous_stay_within_the_results(viewer: TestClient) -> None:
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
def test_missing_page_returns_not_found(viewer: TestClient, path: str) -> None:
    answer = viewer.get(path)
    assert answer.status_code == 404 and re.search(r"There is no [^<]+\.</p>", answer.text)
    assert '<a rel="up" href="/">' in answer.text


def test_data_is_available_as_json_and_text(viewer: TestClient) -> None:
    shown = viewer.get("/json/1/pools/p2").json()
    assert shown["row"]["edit_text"] == "Look at the first document again." and len(shown["segments"]) == 5
    answer = viewer.get("/text/1/pools/p2?place=1")
    assert answer.text == "<search>river through Vorna</search>"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_ten_megabytes_of_text_are_shown_in_part_and_downloadable_in_full(tmp_path: Path) -> None:
    run, huge = new_run(tmp_path), "<b>" * 3_400_000
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", huge, [huge])])
    rows = [
        agent_row(ROLLOUTS, "a", "q1", ("think", huge), ("answer", "no")),
        agent_row(ROLLOUTS, "b", "q1", *[THINK, SEARCH] * 2000, ANSWER),
    ]
    put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    viewer = client(run)
    page = viewer.get("/trajectory/1/rollouts@base/a").text
    assert len(page) < 200_000 and "show all 10,200,000" in page
    assert len(viewer.get("/text/1/rollouts@base/a?place=0").text) == len(huge) + 15
    assert len(viewer.get("/").text) < 100_000
    assert viewer.get("/trajectory/1/rollouts@base/b").text.count('class="segment kind-') == 4001


def test_page_with_very_many_segments_is_bounded_and_reports_omissions(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = [agent_row(ROLLOUTS, "a", "q1", *[("think", "")] * 6_234)]
    put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    viewer = client(run)
    page = viewer.get("/trajectory/1/rollouts@base/a").text
    assert page.count('class="segment kind-') == 5_000
    assert "1,234 further segments are only in the JSON" in text_of(page)
    assert len(viewer.get("/json/1/rollouts@base/a").json()["segments"]) == 6_234


@pytest.mark.parametrize("data", [png(4, 2), b"GIF89a\x02\0\x01\0", b"BM" + bytes(12) + b"\x0c\0\0\0\x02\0\x01\0"])
def test_picture_is_served_as_what_its_bytes_say_and_never_as_a_page(tmp_path: Path, data: bytes) -> None:
    run = new_run(tmp_path)
    picture = read_picture(data)
    run.store(PICTURES).add(picture.digest, data)
    found = client(run).get(f"/picture/{picture.digest}")
    assert (found.status_code, found.content) == (200, data)
    assert found.headers["content-type"] == picture.media_type in MEDIA_TYPES
    assert (found.headers["x-content-type-options"], found.headers["cache-control"]) == ("nosniff", "no-store")
    assert "default-src 'none'" in found.headers["content-security-policy"]


HUGE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes.fromhex("0000ffff0000ffff") + b"\x08\0\0\0\0"
HOSTILE_BYTES = (
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    b"<script>alert(1)</script>",
    b"",
    HUGE,
)


def test_other_bytes_of_the_store_are_not_served(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    store, viewer = run.store(PICTURES), client(run)
    keys = [hashlib.sha256(data).hexdigest()[:32] for data in HOSTILE_BYTES]
    for key, data in zip(keys, HOSTILE_BYTES, strict=True):
        store.add(key, data)
    store.add("0" * 32, png(1, 1))  # not under its digest
    for key in (*keys, "0" * 32, "f" * 32, "x", "..%2f..%2frun.json"):
        found = viewer.get(f"/picture/{key}")
        assert found.status_code == 404 and found.headers["content-type"].startswith("text/html"), key


def test_unexpected_error_returns_a_page(
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
    assert answer.status_code == 500 and "this page could not be rendered" in answer.text
    assert len(caplog.messages) == 1 and "broken" in caplog.messages[0] and "\x1b" not in caplog.messages[0]


@pytest.mark.parametrize("kind", ["questions", "scores", "judgements", "sft_rows"])
def test_trajectory_is_shown_without_changed_data_and_says_so(tmp_path: Path, kind: str) -> None:
    run = example_run(tmp_path)
    (ref,) = [record.outputs[kind] for record in run.records() if kind in record.outputs]
    (file,) = (tmp_path / ref.folder).glob("data/*.parquet")
    viewer = client(run)
    assert viewer.get("/").status_code == 200
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    said = text_of(viewer.get("/trajectory/1/" + ("pools/p2" if kind == "sft_rows" else "rollouts@base/r1")).text)
    assert f"{ref.folder}/data/{file.name} has changed since it was written" in said
    assert "I search for it." in said and "Facts ended answered" in said


def test_unreadable_lineage_is_reported_with_the_trajectory(tmp_path: Path) -> None:
    run = example_run(tmp_path)
    (ref,) = [record.outputs["sft_rows"] for record in run.records() if "sft_rows" in record.outputs]
    (tmp_path / ref.folder / "artifact.json").unlink()
    viewer = client(run)
    said = text_of(viewer.get("/lineage/1/pools/p2").text)
    assert f"The lineage cannot be shown: artifact {ref.folder} is missing" in said and "Which river" in said
    assert "It must be the Ilme" in viewer.get("/trajectory/1/pools/p2").text


def test_lineage_with_a_missing_question_is_reported(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "gone")])
    answer = client(run).get("/lineage/1/rollouts@base/a")
    assert answer.status_code == 200 and "The lineage cannot be shown: question gone is in no table" in text_of(
        answer.text
    )


def test_run_without_trajectories_is_reported_on_the_page(tmp_path: Path) -> None:
    assert "This run has no finished trajectories yet." in client(new_run(tmp_path)).get("/").text
