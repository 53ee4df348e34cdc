"""The stage `selection` on real artifacts."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.tables.score_tables import new_run
from support.tables.selection_tables import ENVIRONMENT, Asked, example, question_rows, rollout_rows, score_rows, select

from treadle.core.errors import ArtifactError, DataError, StageFailed
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import ENVIRONMENTS
from treadle.rl.selection import stage as selection
from treadle.rl.selection.settings import SelectionOptions
from treadle.rl.selection.tables import RL_ROWS
from treadle.rl.verl.rows import VERL_COLUMNS

MIXED = (1.0, 0.0, 1.0, 0.0)


def test_every_question_is_a_row_or_a_rejection_with_its_reason(tmp_path: Path) -> None:
    made = select(tmp_path, example(), SelectionOptions(max_questions=4))
    assert made.keys == ["A", "B", "C", "D"]
    assert made.reasons == {"E": "all_right", "F": "over_limit", "G": "all_wrong", "H": "all_right"}
    rows = {row["question_key"]: row for row in made.rows}
    assert (rows["A"]["rank"], rows["A"]["method"]) == (0, "pareto")
    assert rows["A"]["parts"] == [{"name": "is_boundary", "value": 1.0}]
    assert rows["B"]["parts"] == [
        {"name": "distance", "value": pytest.approx(1.5729, abs=5e-4)},
        {"name": "is_boundary", "value": 0.0},
    ]
    assert rows["D"]["calls"] == [2, 2, 2, 2, 4, 4, 4, 4]
    assert rows["D"]["correctness"] == [1.0] * 3 + [0.0] * 5
    assert rows["D"]["parents"] == [f"D-{index}" for index in range(8)]
    rejected = {row["question_key"]: row for row in made.rejections}
    assert (rejected["F"]["rank"], rejected["F"]["num_usable"], rejected["F"]["mean_correctness"]) == (1, 8, 0.5)
    assert (rejected["G"]["rank"], rejected["G"]["parts"], rejected["G"]["score_tool"]) == (None, [], 0.0)
    counts = {name: count for name, count in made.metrics.items() if name.startswith("left_out.") and count}
    assert counts == {"left_out.all_right": 2, "left_out.all_wrong": 1, "left_out.over_limit": 1}
    assert (made.metrics["questions"], made.metrics["rollouts"], made.metrics["rows"]) == (8, 64, 4)
    assert (made.metrics["fronts"], made.metrics["selected_fronts"], made.metrics["domain.math"]) == (2, 1, 4)


def test_report_and_figure_show_fronts_outcomes_and_question_accuracy(tmp_path: Path) -> None:
    made = select(tmp_path, example(), SelectionOptions(max_questions=4))
    assert "4 of 8 questions, chosen by 64 rollouts; 5 have rollouts that disagree" in made.report
    cells = [re.sub(r" +", " ", line) for line in made.report.splitlines()]
    assert "| all_right | 2 | no usable rollout is wrong |" in cells
    assert "| 0 | 4 | 4 | 0.000 to 3.000 | 0.331 to 0.500 |" in cells
    assert "| 1 | 1 | 0 | 0.500 to 0.500 | 0.433 to 0.433 |" in cells
    assert "| 0.3 to 0.4 | 1 | 1 |" in cells and "| 0.9 to 1.0 | 2 | 0 |" in cells
    assert "| qa | 3 | 1 | 0 |" in cells
    for text in ("Questions and first fronts", "over the limit", "filtered out", "mean correctness"):
        assert text in made.picture


def test_random_selection_writes_rows_without_ranks(tmp_path: Path) -> None:
    options = SelectionOptions.model_validate({"method": "random", "max_questions": 3})
    made = select(tmp_path / "a", example(), options)
    assert {(row["method"], row["rank"], tuple(row["parts"])) for row in made.rows} == {("random", None, ())}
    assert [row["extra_info"]["rank"] for row in made.rows] == [None] * 3
    assert set(made.keys) < set("ABCDF")
    assert select(tmp_path / "b", example()[::-1], options).digest == made.digest
    chosen = {tuple(select(tmp_path / str(seed), example(), options, seed=seed).keys) for seed in range(4)}
    assert len(chosen) > 1


def test_quotas_report_fronts_and_exclusions_by_domain(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        made = select(tmp_path, example(), SelectionOptions(max_questions=8, quotas={"math": 3, "qa": 5}))
    assert made.keys == ["A", "B", "C", "F"] and made.reasons["D"] == "over_quota"
    fronts = {name: count for name, count in made.metrics.items() if "front" in name}
    assert fronts == {
        "fronts": 2, "largest_front": 4, "selected_fronts": 2, "fronts.math": 1, "largest_front.math": 4,
        "selected_fronts.math": 1, "fronts.qa": 1, "largest_front.qa": 1, "selected_fronts.qa": 1,
    }  # fmt: skip
    assert (made.metrics["left_out.over_quota"], made.metrics["unfilled_quota.qa"]) == (1, 4)
    assert "unfilled_quota.math" not in made.metrics
    note = "uotas with too few mixed questions: qa 1 of 5; other domains do not fill them"
    assert f" Q{note}." in made.report and f"; q{note}" in caplog.text
    cells = [re.sub(r" +", " ", line) for line in made.report.splitlines()]
    assert "| math 0 | 4 | 3 | 0.000 to 3.000 | 0.331 to 0.500 |" in cells
    assert "| qa 0 | 1 | 1 | 0.500 to 0.500 | 0.433 to 0.433 |" in cells
    assert "| over_quota | 1 | mixed, but the quota of its domain was full without it |" in cells
    for title in ("Questions and first fronts", "Sizes of the fronts", "How right the rollouts are"):
        assert f"{title} (math)" in made.picture and f"{title} (qa)" in made.picture
    assert "over the quota" in made.picture and "over the limit" not in made.picture


def test_dataset_names_in_the_record_cannot_drive_a_terminal(tmp_path: Path) -> None:
    made = select(tmp_path, [Asked("a", MIXED, (1, 2, 3, 4), dataset="x|y\x1b[2J\n")])
    assert {name for name in made.metrics if name.startswith("dataset.")} == {"dataset.x|y\ufffd[2J\ufffd"}


@pytest.mark.covers("pareto-5")
def test_input_order_and_file_layout_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [Asked(f"q{number}", MIXED, (number % 5, 0, 1, 2)) for number in range(30)]
    options = SelectionOptions(max_questions=20)
    first = select(tmp_path / "a", asked, options)
    assert len(first.rows) == 20
    monkeypatch.setattr(selection, "_ROWS_PER_BUCKET", 3)
    assert select(tmp_path / "b", asked, options).digest == first.digest
    turned = select(tmp_path / "c", asked[::-1], options)
    assert turned.digest == first.digest
    order = [row["question_key"] for row in first.rows]
    other = [row["question_key"] for row in select(tmp_path / "d", asked, options, seed=1).rows]
    assert sorted(other) == sorted(order) != order != other
    assert sorted(row["extra_info"]["index"] for row in first.rows) == list(range(20))


def test_rollouts_lost_or_without_verdict_are_not_wrong_answers(tmp_path: Path) -> None:
    asked = [
        Asked("lost", (1, 1, 1, 0, 0), (1, 1, 1, None, None)),
        Asked("kept", (1, 1, 0, 0, None), (1, 2, 3, None, 9), "qa"),
        Asked("few", (1, 0, None, None, None), (1, 2, 3, 4, 5)),
    ]
    made = select(tmp_path, asked, SelectionOptions(min_rollouts=3))
    assert made.reasons == {"lost": "all_right", "few": "too_few_rollouts"}
    (row,) = made.rows
    assert (row["correctness"], row["calls"], row["num_unusable"]) == ([1.0, 1.0, 0.0], [1, 2, 3], 2)
    assert row["parents"] == ["kept-0", "kept-1", "kept-2"]
    assert (made.metrics["failed_rollouts"], made.metrics["unscored_rollouts"]) == (3, 4)
    assert "7 rollouts (3 lost to infrastructure, 4 without a verdict)" in made.report


def test_held_out_questions_are_never_trained_on(tmp_path: Path) -> None:
    asked = [Asked("a", MIXED, (1, 2, 3, 4)), Asked("b", MIXED, (1, 2, 3, 4), split="heldout")]
    made = select(tmp_path / "a", asked)
    assert (made.keys, made.reasons) == (["a"], {"b": "held_out"})
    with pytest.raises(StageFailed, match=r"no question is left .*held_out 1.* split train"):
        select(tmp_path / "b", asked[1:])


def test_stage_without_mixed_questions_fails_with_counts_and_a_remedy(tmp_path: Path) -> None:
    wrong, right = Asked("a", (0, 0, 0, 0), (1,) * 4), Asked("b", (1, 1, 1, 1), (1,) * 4)
    with pytest.raises(
        StageFailed,
        match=r"no question is left to train on \(.*all_right 1, all_wrong 2\); the policy answers none of them",
    ):
        select(tmp_path / "a", [wrong, right, Asked("c", (0, 0, 0, 0), (1,) * 4)])
    with pytest.raises(StageFailed, match=r"too_few_rollouts 1\); make more rollouts"):
        select(tmp_path / "b", [Asked("a", (None,) * 4, (1,) * 4)])
    mixed = Asked("d", MIXED, (1, 2, 3, 4))
    with pytest.raises(StageFailed, match=r"all_wrong 1, over_quota 1\); selection\.quotas has 0 for math: raise it"):
        select(tmp_path / "c", [wrong, mixed], SelectionOptions(quotas={"math": 0, "qa": 9}))


@pytest.mark.covers("pareto-6")
def test_rollout_without_score_and_score_without_rollout_are_named(tmp_path: Path) -> None:
    asked = example()
    scores, rollouts = score_rows(asked), rollout_rows(asked)
    with pytest.raises(ArtifactError, match="rollout H-7 has no score"):
        select(tmp_path / "a", asked, scores=scores[:-1])
    with pytest.raises(ArtifactError, match="rollout B-2 has no score"):
        select(tmp_path / "b", asked, scores=[row for row in scores if row["rollout_key"] != "B-2"])
    with pytest.raises(ArtifactError, match="score H-7 has no rollout"):
        select(tmp_path / "c", asked, rollouts=rollouts[:-1])
    with pytest.raises(ArtifactError, match="question C, which is not among the questions"):
        select(tmp_path / "d", asked, questions=[row for row in question_rows(asked) if row["question_key"] != "C"])


def test_rejects_rollouts_of_an_earlier_environment_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = example()
    with monkeypatch.context() as patch:
        patch.setattr("treadle.environments.settings.ENVIRONMENT_VERSION", 1)
        earlier = ENVIRONMENT.digest()
    with pytest.raises(StageFailed, match="made in environment .*another prompt, other tools or limits"):
        select(tmp_path, asked, rollouts=rollout_rows(asked, environment_digest=earlier))


def test_rejects_rollouts_of_another_environment_or_of_two_policies(tmp_path: Path) -> None:
    asked = example()
    other = QuestionSettings(max_total_calls=3)
    with pytest.raises(StageFailed, match="made in environment .*another prompt, other tools or limits"):
        select(tmp_path / "a", asked, rollouts=rollout_rows(asked, environment_digest=other.digest()))
    scores = score_rows(asked)
    scores[5]["model"] = "other"
    with pytest.raises(StageFailed, match=r"several models \(base, other\)"):
        select(tmp_path / "b", asked, scores=scores)


@pytest.mark.covers("pareto-7")
def test_source_has_one_domain_which_may_be_any(tmp_path: Path) -> None:
    graded = (0.9, 0.1, 0.2, 0.3)
    asked = [
        Asked("a", MIXED, (1, 1, 1, 1), "math", dataset="still"),
        Asked("b", graded, (1, 1, 1, 1), "math", dataset="still"),
        Asked("c", graded, (1, 1, 1, 1), "qa"),
        Asked("d", MIXED, (1, 1, 1, 1), "choice"),
    ]
    made = select(tmp_path / "a", asked)
    assert made.reasons == {"b": "all_wrong"}
    shown = {
        row["question_key"]: (row["data_source"], row["ability"], row["extra_info"]["source"]) for row in made.rows
    }
    assert shown == {
        "a": ("math_effi_rl", "math", "still"),
        "c": ("qa_effi_rl", "qa", "world"),
        "d": ("choice_effi_rl", "choice", "world"),
    }
    other = select(tmp_path / "b", [*asked, Asked("e", MIXED, (1,) * 4, "poetry", dataset="elsewhere")])
    assert [row["data_source"] for row in other.rows if row["domain"] == "poetry"] == ["treadle_poetry"]


def test_later_phases_report_and_can_exclude_earlier_rows(tmp_path: Path) -> None:
    def asked(*right: str) -> list[Asked]:
        return [Asked(key, (1,) * 4 if key in right else MIXED, (1, 2, 3, 4)) for key in "abcd"]

    run = new_run(tmp_path)
    first = select(tmp_path, asked("d"), run=run)
    assert first.keys == ["a", "b", "c"] and "earlier phases" not in first.report
    second = select(tmp_path, asked("a"), run=run, phase=2, previous=["1/selection@phase-1"])
    assert second.keys == ["b", "c", "d"] and {row["phase"] for row in second.rows} == {2}
    overlap = {name: count for name, count in second.metrics.items() if name.startswith("overlap.") and count}
    assert overlap == {"overlap.1.selected": 2, "overlap.1.all_right": 1}
    assert "Outcomes of the rows of earlier phases" in second.report
    both = ["1/selection@phase-1", "1/selection@phase-2"]
    every = [*asked(), Asked("e", MIXED, (1, 2, 3, 4))]
    third = select(tmp_path, every[1:], SelectionOptions(exclude_previous=True), run=run, phase=3, previous=both)
    assert third.keys == ["e"]
    assert third.reasons == dict.fromkeys("bcd", "selected_before")
    assert third.metrics["overlap.1.not_sampled"] == 1 and third.metrics["overlap.2.not_sampled"] == 0
    assert third.metrics["overlap.2.selected_before"] == 3


def test_rows_start_as_their_question_format_says_and_keep_its_scorer(tmp_path: Path) -> None:
    asked = [Asked("a", MIXED, (1, 2, 3, 4), "qa"), Asked("b", MIXED, (1, 2, 3, 5), "qa")]
    questions = question_rows(asked)
    questions[0] |= {"format": "assertion", "scorer": "math"}
    digests = ENVIRONMENT.digests()
    rollouts = rollout_rows(asked)
    for row in rollouts:
        row["environment_digest"] = digests.of(questions[row["question_key"] == "b"])
    rows = {row["question_key"]: row for row in select(tmp_path, asked, questions=questions, rollouts=rollouts).rows}
    assert rows["a"]["prompt"][0]["content"] == ENVIRONMENT.system_text_of("assertion") != ENVIRONMENT.system_text
    assert rows["b"]["prompt"][0]["content"] == ENVIRONMENT.system_text
    assert (rows["a"]["format"], rows["a"]["scorer"], rows["a"]["data_source"]) == ("assertion", "math", "math_effi_rl")
    assert [rows[key]["environment_digest"] for key in "ab"] == [ENVIRONMENT.digest("assertion"), ENVIRONMENT.digest()]


@pytest.mark.covers("pareto-8")
def test_rows_have_the_environment_prompt_and_verl_types(tmp_path: Path) -> None:
    asked = [Asked("a", MIXED, (1, 2, 3, 4), "qa"), Asked("b", MIXED, (1, 2, 3, 5), "choice")]
    questions = question_rows(asked)
    questions[0]["answers"] = ["Eiffel Tower", "La tour Eiffel"]
    questions[1]["choices"] = ["red", "blue"]
    made = select(tmp_path / "a", asked, questions=questions, phase=3)
    rows = {row["question_key"]: row for row in made.rows}
    assert rows["a"]["prompt"] == [
        {"content": ENVIRONMENT.system_text, "role": "system"},
        {"content": "question a?", "role": "user"},
    ]
    assert rows["a"]["reward_model"] == {"ground_truth": ["Eiffel Tower", "La tour Eiffel"], "style": "rule"}
    assert rows["b"]["prompt"][1]["content"] == "question b?\n\nA. red\nB. blue"
    assert rows["b"]["extra_info"] == {
        "index": 0, "need_tools_kwargs": False, "question": "question b?", "split": "train", "id": "b",
        "source": "world", "stage": 3, "score_tool": rows["b"]["score_tool"], "score_corr": 0.5, "rank": 0,
        "choices": ["red", "blue"],
    }  # fmt: skip
    stored = pq.read_schema(made.folder / "data/part-00000.parquet")
    assert [stored.field(name).type for name in VERL_COLUMNS] == [RL_ROWS.schema.field(n).type for n in VERL_COLUMNS]
    card = (made.folder / "README.md").read_text()
    assert "| `rank` | int32 |" in card
    bare = QuestionSettings(system_prompt="")
    rollouts = rollout_rows(asked, environment_digest=bare.digest())
    made = select(tmp_path / "b", asked, questions=questions, rollouts=rollouts, environment=bare)
    assert all([message["role"] for message in row["prompt"]] == ["user"] for row in made.rows)


def test_rows_of_each_environment_have_its_prompt_and_digest(tmp_path: Path) -> None:
    guess = ENVIRONMENTS.parse({"type": "support.rollouts.dialogues:Guess"})
    asked = [Asked("a", MIXED, (1, 2, 3, 4), "qa"), Asked("b", (-3.0, 200.0, 200.0, -3.0), (0,) * 4, "task")]
    questions = question_rows(asked)
    questions[1]["environment"] = "guess"
    rollouts = [
        row | ({"environment": "guess", "environment_digest": guess.digest()} if row["question_key"] == "b" else {})
        for row in rollout_rows(asked)
    ]
    given = {"questions": questions, "rollouts": rollouts, "environments": {"guess": guess}}
    made = select(tmp_path / "a", asked, **given)
    rows = {row["question_key"]: row for row in made.rows}
    assert {key: row["environment"] for key, row in rows.items()} == {"a": "default", "b": "guess"}
    assert rows["a"]["environment_digest"] == ENVIRONMENT.digest() != rows["b"]["environment_digest"] == guess.digest()
    assert rows["b"]["prompt"] == [{"role": "user", "content": "question b?"}], "an episode alone knows its messages"
    assert (made.metrics["environment.default"], made.metrics["environment.guess"]) == (1, 1)
    assert "## Environments" in made.report or "Environments" in made.report
    alone = select(tmp_path / "b", asked[:1])
    assert not any(name.startswith("environment") for name in alone.metrics) and "Environments" not in alone.report
    with pytest.raises(DataError, match=r"environment 'guess', which this run does not have.*environments\.guess"):
        select(tmp_path / "c", asked, **given | {"environments": {}})
    swapped = [row | {"environment_digest": ENVIRONMENT.digest()} for row in rollouts]
    with pytest.raises(StageFailed, match=r"another prompt, .* restore the \[environments\.guess\]"):
        select(tmp_path / "d", asked, **given | {"rollouts": swapped})


def test_scale_of_an_environments_rewards_does_not_displace_questions_of_another(tmp_path: Path) -> None:
    guess = ENVIRONMENTS.parse({"type": "support.rollouts.dialogues:Guess"})

    def chosen(scale: float) -> list[str]:
        calls = (0, 1, 1, 1)
        asked = [
            Asked("sum", (0.0, 1.0, 0.0, 1.0), calls),
            *(Asked(f"game{n}", (0.0, 0.0, 0.0, scale / n), calls, "task") for n in (1, 2, 3)),
        ]
        questions = question_rows(asked)
        for row in questions[1:]:
            row["environment"] = "guess"
        own = {"environment": "guess", "environment_digest": guess.digest()}
        rollouts = [row | (own if row["question_key"] != "sum" else {}) for row in rollout_rows(asked)]
        made = select(
            tmp_path / f"{scale:g}",
            asked,
            SelectionOptions(max_questions=2),
            questions=questions,
            rollouts=rollouts,
            environments={"guess": guess},
        )
        deviations = {row["question_key"]: row["score_corr"] for row in made.rows}
        assert deviations["sum"] == 0.5 and deviations["game1"] == pytest.approx(scale * 0.1875**0.5, rel=1e-4)
        return sorted(deviations)

    assert chosen(1.0) == chosen(1000.0) == ["game1", "sum"]


def test_tasks_are_selected_by_rewards_that_differ(tmp_path: Path) -> None:
    """Rewards may have any range; equal ones teach nothing, whatever their value."""
    settings = ENVIRONMENTS.parse({"type": "support.rollouts.dialogues:Guess"})
    asked = [
        Asked("near", (2.0, 2.0, 1.5, 2.0), (0,) * 4, "task"),
        Asked("far", (-3.0, 2.0, 2.0, -3.0), (0,) * 4, "task"),
        Asked("lost", (-3.0,) * 4, (0,) * 4, "task"),
        Asked("won", (2.0,) * 4, (0,) * 4, "task"),
    ]
    rollouts = rollout_rows(asked, environment_digest=settings.digest())
    made = select(tmp_path, asked, environment=settings, rollouts=rollouts)
    rows = {row["question_key"]: row for row in made.rows}
    assert rows.keys() == {"near", "far"}
    assert rows["far"]["score_corr"] == pytest.approx(2.5) and rows["far"]["rank"] == 0
    assert rows["far"]["correctness"] == [-3.0, 2.0, 2.0, -3.0] and rows["far"]["data_source"] == "treadle_task"
    assert made.reasons == {"lost": "all_wrong", "won": "all_right"}
    assert made.metrics["mean_correctness"] == pytest.approx((1.875 - 0.5 - 3 + 2) / 4)
