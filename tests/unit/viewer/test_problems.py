"""The viewer says what looks wrong with an instance: on the list with examples, and on its trajectories."""

from __future__ import annotations

from pathlib import Path

from support.tables.problem_runs import answers, scored_run, silent_run
from support.tables.viewer_run import agent_row, client, put_from

from treadle.core.runs.address import Address
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.viewer.catalogue import Catalogue
from treadle.viewer.problems import ProblemReader

SENTENCE = "10 of 10 rollouts did not end with an answer"


def test_list_shows_problems_with_links_to_examples(tmp_path: Path) -> None:
    run, _ = silent_run(tmp_path)
    good = [agent_row(ROLLOUTS, f"g{number}", "q1", ("answer", str(number))) for number in range(3)]
    put_from(run, "1/rollouts@good", {"rollouts": good}, {"questions": Address.parse("1/questions")})
    viewer = client(run)
    page = viewer.get("/").text
    assert SENTENCE in page and "/trajectory/1/rollouts@base/rq0?instance=1%2Frollouts%40base" in page
    assert SENTENCE in viewer.get("/", params={"instance": "1/rollouts@base"}).text
    assert SENTENCE not in viewer.get("/", params={"instance": "1/rollouts@good"}).text
    told = viewer.get("/trajectory/1/rollouts@base/rq5").text
    assert SENTENCE in told and 'href="/?instance=1%2Frollouts%40base"' in told
    assert SENTENCE not in viewer.get("/trajectory/1/rollouts@good/g1").text


def test_problems_of_scores_are_shown_with_their_rollouts(tmp_path: Path) -> None:
    viewer = client(scored_run(tmp_path, answers(*(str(number) for number in range(10, 20)))))
    assert "None of 10 answers is right" in viewer.get("/").text
    page = viewer.get("/trajectory/1/rollouts@base/r1").text
    assert "1/scores@base: None of 10 answers is right" in page


def test_each_result_is_read_once(tmp_path: Path) -> None:
    run, _ = silent_run(tmp_path)
    reader = ProblemReader()
    first = reader.problems(run.records(), run)
    assert [one.diagnosis.problem for one in first.problems] == ["no_answer"]
    again = reader.problems(run.records(), run)
    assert again.problems[0].diagnosis is first.problems[0].diagnosis
    assert Catalogue(run, refresh_s=0).snapshot().wrong == first
