"""Comparisons on the page: how the two sides were scored, and which answers are shown for changed questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.tables.page_tables import PageReader
from support.tables.score_tables import new_run, put_rows, question, score

from treadle.agent.judges.correctness import Correctness
from treadle.agent.role_settings import JudgeSampling, RoleSettings
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import part_items
from treadle.datagen.questions.tables import QUESTIONS
from treadle.eval.config import RedundancyOptions, ReportSettings, ScoresOptions, ScoresSettings
from treadle.eval.dataset_figures import by_dataset
from treadle.eval.figures.response_lengths import QUANTILES
from treadle.eval.judging_differences import Scoring
from treadle.eval.metrics import FIGURES, title_of
from treadle.eval.scored_rollout import ScoredRollout
from treadle.eval.tables import SCORES
from treadle.report.entry import REPORT_STAGE
from treadle.tasks.page.build import report_page
from treadle.tasks.page.comparisons import comparisons_section
from treadle.tasks.page.models import evaluated_models
from treadle.tasks.page.sources import PageRun


def role(name: str, model: str = "judge-1", max_tokens: int = 16) -> RoleSettings:
    return RoleSettings(name=name, model=ModelSettings(model=model), sampling=JudgeSampling(max_tokens=max_tokens))


def judged(name: str = "large", *, prompts: str = "p", domains: Any = ("math",), **given: Any) -> ScoresSettings:
    """Return settings of scores with one judge."""
    options = ScoresOptions(judges=Correctness(models=(name,), domains=domains, **given))
    return ScoresSettings(options=options, judges={name: role(name)}, judge_digests=(prompts,))


def voted(votes: int, *, model: str = "judge-1") -> ScoresSettings:
    options = ScoresOptions(redundancy=RedundancyOptions(model="voter", votes=votes))
    return ScoresSettings(options=options, redundancy=role("voter", model), judge_digests=("v",))


RULES = ScoresSettings()
LOW = ScoresSettings(options=ScoresOptions(f1_threshold=0.5))


@pytest.mark.parametrize(
    ("first", "second", "figure", "differences"),
    [
        (RULES, RULES, "score", []),
        (RULES, LOW, "score", ["f1_threshold 0.8, then 0.5"]),
        (RULES, LOW, "reasoning_length", ["f1_threshold 0.8, then 0.5"]),
        (RULES, LOW, "calls_requested", []),
        (RULES, LOW, "conciseness", []),
        (RULES, judged(), "score", ["judges none, then large"]),
        (judged(), judged("other"), "score", ["judges large, then other"]),
        (judged(), judged(prompts="q"), "score", ["different prompts of judges"]),
        (
            judged(),
            judged(domains=("math", "qa"), on_failed="rule"),
            "score",
            ["judges.domains math, then math and qa", "judges.on_failed exclude, then rule"],
        ),
        (RULES, voted(10), "score", []),
        (RULES, voted(10), "conciseness", ["votes by no model, then voter"]),
        (voted(10), voted(5), "conciseness", ["votes 10, then 5"]),
        (voted(10), voted(10, model="judge-2"), "conciseness", ["different model or sampling of voter voter"]),
    ],
)
def test_settings_that_change_a_metric_are_reported(
    first: ScoresSettings, second: ScoresSettings, figure: str, differences: list[str]
) -> None:
    ours, theirs = (Scoring.of(3, settings.model_dump(mode="json")) for settings in (first, second))
    assert ours.differences_from(theirs, figure) == differences
    assert len(theirs.differences_from(ours, figure)) == len(differences)


def test_same_named_other_judge_and_other_version_are_reported() -> None:
    other = judged().model_copy(update={"judges": {"large": role("large", max_tokens=99)}})
    ours, theirs = Scoring.of(3, judged().model_dump(mode="json")), Scoring.of(3, other.model_dump(mode="json"))
    assert ours.differences_from(theirs, "score") == ["different model or sampling of judge large"]
    later = Scoring.of(4, judged().model_dump(mode="json"))
    assert ours.differences_from(later, "calls_requested") == ["version of the stage scores 3, then 4"]
    assert Scoring.of(3, {"unknown": 1}).differences_from(ours, "score") == [], (
        "of unknown settings only the version is told"
    )


def reported(root: Path, models: Sequence[tuple[Sequence[Mapping[str, Any]], ScoresSettings]], **given: Any) -> Run:
    """Return a run with a report on models that were scored under these settings."""
    run = new_run(root)
    asked = sorted({row["question_key"] for rows, _ in models for row in rows})
    put_rows(run, "1/questions", QUESTIONS, [question(key, ["gold"]) for key in asked])
    scored = []
    for place, (rows, settings) in enumerate(models):

        def write(context: StageContext, rows: Sequence[Mapping[str, Any]] = rows) -> dict[str, Any]:
            context.write("scores", rows)
            return {}

        stage = Stage(
            name="scores", version=3, settings=ScoresSettings, consumes={"questions": "questions"},
            produces=(SCORES,), run=write,
        )  # fmt: skip
        scored.append(Address.parse(f"1/scores@model{place}"))
        inputs = {"questions": (Address.parse("1/questions"),)}
        execute(Instance(address=scored[-1], stage=stage, settings=settings, inputs=inputs), run)
    settings = ReportSettings(bootstrap_samples=100, **given)
    report = Instance(
        address=Address.parse("1/report"), stage=REPORT_STAGE, settings=settings, inputs={"scores": tuple(scored)}
    )
    execute(report, run)
    return run


def tries(model: str, dataset: str, *questions: Sequence[bool]) -> list[dict[str, Any]]:
    """Rows of one model: a list of tries for each question, which say who answered, when, and whether it is right."""
    return [
        score(f"{model}-{dataset}-{place}-{number}", f"{dataset}-{place}", verdict, model=model, dataset=dataset,
              sample_index=number, prediction=f"{model} {number} {'right' if verdict else 'wrong'}",
              calls_requested=1, calls_executed=1)
        for place, verdicts in enumerate(questions)
        for number, verdict in enumerate(verdicts)
    ]  # fmt: skip


def test_differently_scored_models_of_one_or_two_runs_are_noted(tmp_path: Path) -> None:
    rows = [tries(model, "d", [True], [False], [model == "b"]) for model in ("a", "b")]
    alike = reported(tmp_path / "alike", [(rows[0], RULES), (rows[1], RULES)])
    differences_from = reported(tmp_path / "differences_from", [(rows[0], RULES), (rows[1], LOW)])
    told = "a → b: scored differently: f1_threshold 0.8, then 0.5."
    note = PageReader(report_page([differences_from])).table("comparisons", "Correctness").note
    assert told in note
    assert "scored differently" not in PageReader(report_page([alike])).text("comparisons")
    both = PageReader(report_page([alike, differences_from])).table("comparisons", "Correctness").note
    assert "b · test (1) → test (2): scored differently: f1_threshold 0.8, then 0.5." in both
    assert "a · test (1) → test (2): scored differently" not in both


def test_scores_changed_since_the_report_are_not_described(tmp_path: Path) -> None:
    rows = [tries(model, "d", [True], [model == "b"]) for model in ("a", "b")]
    run = reported(tmp_path, [(rows[0], RULES), (rows[1], RULES)])
    put_rows(run, "1/scores@model1", SCORES, [{**row, "prediction": "anew"} for row in rows[1]])
    models = evaluated_models([PageRun(run)])
    assert [(model.name, model.scoring is None) for model in models] == [("a", False), ("b", True)]


def test_shown_answers_represent_most_attempts(tmp_path: Path) -> None:
    """In each group of three the first answer contradicts the majority."""
    before = tries("a", "d", [True, False, False], [False, True, True], [True, True, True])
    after = tries("b", "d", [False, True, True], [True, False, False], [True, True, True])
    page = PageReader(report_page([reported(tmp_path, [(before, RULES), (after, RULES)])]))
    gained, lost = page.table("comparisons", "Gained"), page.table("comparisons", "Lost")
    assert gained.rows[1:] == [["question d-0?", "gold", "a 1 wrong", "b 1 right"]]
    assert lost.rows[1:] == [["question d-1?", "gold", "a 1 right", "b 1 wrong"]]


def test_questions_of_one_side_only_are_reported_as_excluded(tmp_path: Path) -> None:
    before, after = tries("a", "d", [True], [False], [True]), tries("b", "d", [True], [True])
    note = (
        PageReader(report_page([reported(tmp_path, [(before, RULES), (after, RULES)])]))
        .table("comparisons", "Correctness")
        .note
    )
    assert "1 questions of d left out, because only one of the two was asked them, or has a verdict on them." in note


def test_every_metric_is_shown_for_every_dataset(tmp_path: Path) -> None:
    """F1 as published is shown next to F1, if published tables have it; on the page and in the report's text."""
    votes = {"votes_yes": 0, "votes_no": 10, "votes_abstained": 0}
    rows = [row | votes | {"parts": part_items({"f1": 0.5, "f1_legacy": 0.25 if row["dataset"] == "a" else 0.75})}
            for name in ("a", "b") for row in tries("m", name, [True], [False])]  # fmt: skip
    run = reported(tmp_path, [(rows, RULES)])
    page = PageReader(report_page([run]))
    record = next(record for record in run.records() if record.stage == "report")
    markdown = run.rows(record.outputs["summary"]).read_file("report.md").decode()
    for name, page_value, value in (("a", "25.0", "0.250"), ("b", "75.0", "0.750")):
        table = page.table("headline", f"{name} [95 %]")
        assert table.row("F1 as published, %")["m"].startswith(f"{page_value} [")
        text = markdown.partition(f"### {name}\n")[2].partition("###")[0]
        assert f"{value} [" in next(line for line in text.splitlines() if line.startswith("| F1 as published "))
        titles = {row[0].removesuffix(", %") for row in table.rows[1:]}
        names = [
            *(name for name, figure in FIGURES.items() if figure.of != "rewards" and not figure.is_money),
            "f1",
            "f1_legacy",
            *QUANTILES,
        ]
        assert titles == set(map(title_of, names))
        assert all(f"\n| {title} " in text for title in titles)


def test_omitted_charts_are_reported(tmp_path: Path) -> None:
    rows = [row for number in range(13) for row in tries("m", f"d{number:02}", [True])]
    text = PageReader(report_page([reported(tmp_path, [(rows, RULES)])])).text("headline")
    assert "Only the first 12 of 14 averages and data sets are drawn." in text


def test_rollouts_of_a_model_are_grouped_by_dataset_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many models of another run it is compared with."""
    runs = [
        reported(tmp_path / name, [(tries(f"{name}{number}", "d", [True], [False]), RULES) for number in range(3)])
        for name in ("x", "y")
    ]
    models = evaluated_models([PageRun(run, name) for run, name in zip(runs, ("one", "two"), strict=True)])
    made: list[str] = []

    def counted(rollouts: list[ScoredRollout]) -> dict[str, list[ScoredRollout]]:
        made.append(rollouts[0].dataset)
        return by_dataset(rollouts)

    monkeypatch.setattr("treadle.report.comparison_rows.by_dataset", counted)
    (section,) = comparisons_section(models)
    assert len(made) == len(models) == 6, "nine pairs across"
    assert section.parts
