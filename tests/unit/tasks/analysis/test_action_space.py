"""The action space: which trajectories are drawn, that those that act alike are near, and what is refused."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.tables.page_runs import Scored, counted_run
from support.tables.page_tables import PageReader
from support.tables.score_tables import put_rows, rollout, score

from treadle.cli.commands.report import report
from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.run import Run
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.report.action_space import draw_action_space
from treadle.report.radar import COLOURS
from treadle.tasks.analysis.action_vectors import tsne_points
from treadle.tasks.analysis.run_results import RunResults
from treadle.tasks.page.action_space import action_space_section
from treadle.tasks.page.build import report_page

ACTIONS = {
    "searcher": [("think", "I look it up."), ("search", "who wrote the book"), ("answer", "Ilme")],
    "coder": [("think", "I compute it."), ("python", "print(6 * 7)"), ("answer", "42")],
}
Segments = Sequence[tuple[str, str]]


def rows_of(model: str, segments: Segments, *, questions: int = 3, samples: int = 3, **columns: Any) -> list[Any]:
    """Return rollouts of a model on the same questions as others; each names its question and sample."""
    return [
        rollout(
            f"{model}-{asked}-{sample}",
            f"q{asked}",
            [*segments, ("think", f"about {asked}, {sample}")] if segments else [],
            model=model,
            sample_index=sample,
            **columns,
        )
        for asked in range(questions)
        for sample in range(samples)
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunResults]:
    run = Run.create(tmp_path_factory.mktemp("space"), "run", {}, {})
    for model, segments in ACTIONS.items():
        idle = rows_of(model, [], questions=1, samples=1, status="no_answer")
        failed = rows_of(model, segments, questions=1, samples=1, status="failed")
        extra = [
            {**row, "rollout_key": f"{model}-idle-{place}", "sample_index": 9}
            for place, row in enumerate(idle + failed)
        ]
        put_rows(run, f"1/rollouts@{model}", ROLLOUTS, rows_of(model, segments) + extra)
    yield RunResults(run)


def test_trajectories_that_act_alike_are_near(results: RunResults) -> None:
    space = results.action_space()
    rows = space.points.to_arrow().to_pylist()
    assert len(rows) == 18, "failed ones, and those that did nothing, are left out"
    assert {(row["model"], row["question_key"], row["sample_index"], row["rollout_key"]) for row in rows} == {
        (model, f"q{asked}", sample, f"{model}-{asked}-{sample}")
        for model in ACTIONS
        for asked in range(3)
        for sample in range(3)
    }
    places = np.array([(row["x"], row["y"]) for row in rows])
    models = np.array([row["model"] for row in rows])
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + np.diag([np.inf] * len(rows))
    assert (models[distances.argmin(axis=1)] == models).all(), "the nearest trajectory is of the same model"
    again = results.action_space()
    assert again.points.arrow.equals(space.points.arrow) and again.svg == space.svg
    assert not results.action_space(seed=1).points.arrow.equals(space.points.arrow)


def test_choice_is_bounded_and_the_same_questions_for_all(results: RunResults) -> None:
    rows = results.action_space(num_questions=2, per_question=2).points.to_arrow().to_pylist()
    by_model = {
        model: {(r["question_key"], r["sample_index"]) for r in rows if r["model"] == model} for model in ACTIONS
    }
    assert by_model["searcher"] == by_model["coder"] and len(rows) == 8
    assert {sample for _, sample in by_model["coder"]} == {0, 1}
    one = results.action_space(models=["coder"])
    assert set(one.points.to_arrow()["model"].to_pylist()) == {"coder"} and one.models == ("coder",)


def test_encoder_is_that_of_the_runs_search(tmp_path: Path, results: RunResults) -> None:
    search = {"engine": "dense", "encoder": {"type": "hashing", "dimension": 64}}
    run = Run.create(tmp_path, "run", {"environment": {"search": search}}, {})
    put_rows(run, "1/rollouts@coder", ROLLOUTS, rows_of("coder", ACTIONS["coder"]))
    assert "by hashing" in RunResults(run).action_space().caption
    assert "TF-IDF" in results.action_space().caption, "without one, letters are compared, and it is said"
    assert "by hashing" in results.action_space(encoder={"type": "hashing"}).caption


def test_tool_results_do_not_count(tmp_path: Path) -> None:
    drawn = []
    for name, results_of_calls in (("one", ("same",) * 3), ("two", ("an error", "many numbers", ""))):
        run = Run.create(tmp_path, name, {}, {})
        rows = [
            row
            for place, call in enumerate(("print(6)", "x = [1]", "import re"))
            for row in rows_of("m", [("python", call), ("result", results_of_calls[place] * 50)], questions=1 + place)
        ]
        put_rows(run, "1/rollouts@m", ROLLOUTS, [{**row, "rollout_key": str(n)} for n, row in enumerate(rows)])
        drawn.append(RunResults(run).action_space().points.arrow)
    assert drawn[0].equals(drawn[1])


@pytest.mark.parametrize("vectors", [np.zeros((9, 1)), np.ones((9, 5)), np.eye(9), np.arange(9.0)[:, None]])
def test_any_vectors_can_be_placed(vectors: np.ndarray) -> None:
    points, perplexity = tsne_points(vectors, 0)
    assert points.shape == (9, 2) and np.isfinite(points).all() and perplexity == 2


def test_what_cannot_be_drawn_is_refused(results: RunResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, error, said in (
        (
            {"per_question": 1, "num_questions": 3},
            DataError,
            "at least 8 trajectories .* there are 6; raise rollouts.sam",
        ),
        (
            {"models": ["codr"]},
            ConfigError,
            "no rollouts of 'codr'; there are those of searcher, coder|coder, searcher",
        ),
        ({"num_questions": 0}, ConfigError, "num_questions is 0"),
        ({"per_question": 10_000}, ConfigError, "per_question at most 375"),
        ({"encoder": {"type": "hash"}}, ConfigError, "'type': Input should be 'embedded'"),
    ):
        with pytest.raises(error, match=said):
            results.action_space(**options)
    run = Run.create(tmp_path, "run", {}, {})
    for number in range(9):
        put_rows(run, f"1/rollouts@m{number}", ROLLOUTS, rows_of(f"m{number}", ACTIONS["coder"], samples=1))
    with pytest.raises(ConfigError, match="9 models have rollouts, but only 8 can be distinguished"):
        RunResults(run).action_space()
    assert len(RunResults(run).action_space(models=["m8", "m3", "m5"]).models) == 3
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"scikit-learn: pip install 'treadle\[analysis\]'"):
        results.action_space()


def test_picture_has_a_colour_per_model_and_names_as_text() -> None:
    models = ["absent", "<b>\ufffe\x1b", "second"]
    picture = ElementTree.fromstring(
        draw_action_space([(models[1], 0, 0), (models[2], 5, 1), (models[2], 5, 1)], models)
    )
    fills = [shape.get("fill") for shape in picture.iter() if shape.tag.endswith("polygon")]
    assert fills == [COLOURS[1], COLOURS[2], COLOURS[2], COLOURS[1], COLOURS[2]], "points, then the legend"
    names = [shape.text for shape in picture.iter() if shape.tag.endswith("text")]
    assert names[1:] == ["second"] and names[0] is not None and names[0].startswith("<b>?")
    assert draw_action_space([("m", 1, 1)], ["m"]), "points in one place"


def test_notebooks_show_an_image_and_its_caption(results: RunResults) -> None:
    page = results.action_space()._repr_html_()
    assert page.startswith('<img alt="18 trajectories') and "<svg" not in page


def test_page_has_the_picture_on_request(tmp_path: Path) -> None:
    models = [
        Scored(
            [score(f"{model}-{place}", f"q{place % 4}", True, model=model) for place in range(8)],
            segments=segments,
        )
        for model, segments in ACTIONS.items()
    ]
    run = counted_run(tmp_path, "run", models)
    for flags in ([], ["--action-space"]):
        given = ["--run", "run", "--root", str(tmp_path), "--out", str(tmp_path / "page.html"), *flags]
        assert CliRunner().invoke(report, given, catch_exceptions=False).exit_code == 0
        assert ('id="action-space"' in (tmp_path / "page.html").read_text()) == bool(flags)
    page = PageReader(report_page([run, run], action_space_section))
    assert "32 trajectories" in page.text("action-space") and "coder · run (2)" in page.text("action-space")


def test_page_says_why_there_is_no_picture(tmp_path: Path) -> None:
    run = counted_run(tmp_path, "run", [Scored([score("key", "q", True, model="m")])])
    content = report_page([run], action_space_section).decode()
    assert "The action space is not drawn: " in content and 'id="action-space"' not in content
