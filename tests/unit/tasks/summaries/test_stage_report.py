"""Results of a selection and a training, in words and tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from treadle.rl.selection.summary import selection_figures, selection_sentences
from treadle.rl.training.curves import end_steps
from treadle.rl.training.events import RlStep
from treadle.rl.training.report import render_report, turn_metrics
from treadle.rl.training.summary import rl_figures, rl_sentences, rl_steps
from treadle.rl.training_engine import RL_ENGINES

LOG: list[dict[str, Any]] = [
    {
        "step": step,
        "reward": step / 40,
        "score": None,
        "calls": 2.0,
        "length": 120.0,
        "environments": [],
        "parts": [{"name": "bonus", "value": step / 10}, {"name": "fixed", "value": 1.0}],
    }
    for step in range(1, 41)
]
TRAINED = {
    "steps": 40, "rows": 64, "engine": "trl 1, cpu", "rollouts": 2560, "reward_rule": "outcome",
    "equal_groups": 7, "groups": 160, "chosen_step": 30,
}  # fmt: skip


def test_training_metrics_show_both_ends_and_a_curve_over_all_steps() -> None:
    (figures,) = rl_figures(LOG)
    rows = {row[0]: row[1:] for row in figures.rows}
    assert figures.header == ("mean of", "first 10 steps", "last 10 steps", "curve")
    assert rows["reward"][:2] == ("0.138", "0.887")
    curve = str(rows["reward"][2])
    assert len(curve) == 24 and curve[0] == "▁" and curve[-1] == "█" and sorted(curve) == list(curve)
    assert "fixed" not in rows and rows["bonus"][:2] == ("0.550", "3.550")
    assert rows["score"] == ("-", "-", "") and rows["length in tokens"][:2] == ("120.0", "120.0")
    assert rl_figures([]) == []


def test_means_at_the_ends_use_an_equal_number_of_informative_steps() -> None:
    spans = {steps: end_steps(steps) for steps in (1, 2, 3, 12, 20, 30, 1000)}
    assert spans == {1: 1, 2: 1, 3: 1, 12: 4, 20: 6, 30: 10, 1000: 10}


def test_artifact_page_shows_the_same_means_as_terminal_and_ui() -> None:
    unknown = dict.fromkeys(RlStep.__slots__)
    counts = {"num_rollouts": 8, "num_groups": 2, "num_equal_groups": 0, "seconds": 1.0}
    steps = [
        RlStep(**{**unknown, **counts, **step, "parts": {part["name"]: part["value"] for part in step["parts"]}})
        for step in LOG[:20]
    ]
    parts = {"bonus": "what is added", "fixed": "always 1"}
    options = SimpleNamespace(
        checkpoint_rule="last", engine=RL_ENGINES.parse("trl"), max_prompt_tokens=9, group_size=4, reward_parts=parts,
        reward=SimpleNamespace(described="mine", PARTS=parts),
    )  # fmt: skip
    plan = SimpleNamespace(
        options=options, machine=SimpleNamespace(variant="cpu"), phase=1, phases=1, start="1/sft", num_rows=4,
        num_validation_rows=0,
    )  # fmt: skip
    done = SimpleNamespace(steps=steps, num_steps=20, chosen_step=20, versions={}, validations=[])
    turns = turn_metrics([1] * 18 + [7, 30])
    assert turns == {"turns_mean": 2.75, "turns_p95": 7.0} and turn_metrics([]) == {}
    page = render_report(cast(Any, plan), cast(Any, done), num_too_long=0, num_held_out=0, turns=turns)
    assert "Turns of a rollout: mean 2.75, 95th percentile 7." in page
    assert "Parts of rewards and credit: bonus, what is added" in page
    (figures,) = rl_figures(LOG[:20])
    assert figures.header[1:3] == ("first 6 steps", "last 6 steps")
    told_there = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in page.splitlines()}
    assert {figures.header[:3], *(row[:3] for row in figures.rows)} <= told_there


def test_ui_table_has_one_row_per_step() -> None:
    rows = rl_steps(LOG)
    assert len(rows) == 40
    assert rows[0] == {
        "step": 1, "reward": 0.025, "score": None, "calls": 2.0, "length in tokens": 120.0, "bonus": 0.1,
    }  # fmt: skip


def test_training_reports_the_exported_policy_and_its_accuracy() -> None:
    plain = rl_sentences(TRAINED)
    assert plain[0] == ("40 steps over 64 questions by trl 1, cpu, 2,560 rollouts; reward outcome.")
    assert plain[1].startswith("In 7 of 160 groups all rewards were equal")
    assert plain[-1] == "The policy of step 30 is exported."
    validated = rl_sentences({**TRAINED, "validation_score": 0.5, "validation_questions": 20})
    assert validated[-1] == "The policy of step 30 is exported: score 0.500 on 20 held-out questions, greedily."


def test_selection_reports_exclusions_and_overlap_with_earlier_phases() -> None:
    metrics = {
        "rows": 40, "questions": 1200, "selected_fronts": 2, "fronts": 9, "rollouts": 19_200,
        "left_out.all_right": 700, "left_out.all_wrong": 60, "left_out.heldout": 0,
        "overlap.1.selected": 10, "overlap.1.all_right": 25, "overlap.1.not_sampled": 5, "overlap.2.selected": 3,
    }  # fmt: skip
    assert selection_sentences(metrics) == [
        "40 of 1,200 questions are selected, from the first 2 of 9 fronts; 19,200 rollouts decided."
    ]
    assert "from 2 of 9 fronts" in selection_sentences({**metrics, "fronts.math": 4, "fronts.qa": 5})[0]
    left_out, earlier = selection_figures(metrics)
    assert left_out.rows == (("all right", 700), ("all wrong", 60))
    assert earlier.rows == (("phase-1", 40, 10, "all right 25, not sampled 5"), ("phase-2", 3, 3, "-"))
