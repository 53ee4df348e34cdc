"""Recipes of users that cannot run are refused when they are planned, each in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.flow_part import flow_part

QUESTIONS = 'Step(("questions",))'
MODELS = 'Step(("rollouts", "scores"), each="model")'


def config(folder: Path, steps: str) -> TreadleConfig:
    file = folder / "mine.py"
    file.write_text(f"from treadle.api import Recipe, Step\n\nclass Mine(Recipe):\n    steps = {steps}\n")
    (folder / "questions.jsonl").write_text('{"question": "?", "answer": "1"}\n')
    model = {"model": "treadle-tutor", "server": {"type": "tutor", "persona": "strong"}}
    return load_config(
        TreadleConfig,
        data={
            "flow": {"recipe": {"type": "mine.py:Mine", "code_file": str(file)}, "stages": ["rollouts", "scores"]},
            "models": {"agent": model},
            "questions": {"sources": [{"path": str(folder / "questions.jsonl"), "dataset": "d", "domain": "qa"}]},
            "environment": {"search": {"enabled": False}, "python": {"enabled": False}},
        },
    )


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("()", "mine.py:Mine.steps must be a tuple of treadle.api.Step"),
        ('("questions",)', "mine.py:Mine.steps must be a tuple of treadle.api.Step"),
        (f'({QUESTIONS}, Step("report"))', r"steps\[1\]: write its stages as a tuple"),
        (
            f'({QUESTIONS}, Step(("rollout",)))',
            r"steps\[1\]: there is no stage 'rollout' .did you mean 'rollouts'.*; the stages are questions",
        ),
        (f'({QUESTIONS}, Step(("rollouts",), each="modl"))', "each = 'modl' is not one of iteration, phase, model"),
        (
            f'({QUESTIONS}, {MODELS}, Step(("report",), reads={{"report.score": ("scores@agent",)}}))',
            "reads has 'report.score', which its stages do not read; they read report.questions, report.scores",
        ),
        (f"({MODELS}, {QUESTIONS})", "mine.py:Mine runs 1/rollouts@agent before 1/questions, which it reads"),
        (f"({QUESTIONS}, {MODELS}, {MODELS})", "mine.py:Mine runs 1/rollouts@agent twice"),
    ],
)
def test_recipe_that_cannot_run_is_refused(steps: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        flow_instances(config(tmp_path, steps))


def test_recipe_in_the_order_of_its_inputs_is_planned(tmp_path: Path) -> None:
    planned = flow_instances(config(tmp_path, f"({QUESTIONS}, {MODELS})"))
    assert [str(one.address) for one in planned] == ["1/questions", "1/rollouts@agent", "1/scores@agent"]


def evolving(*stages: str, **exploration: Any) -> TreadleConfig:
    model = {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}
    roles = {role: {"model": role} for role in ("explorer", "summariser", "solver")}
    plan = {
        "flow": {"recipe": "agent-evolver", "stages": stages, "models": ["solver"]},
        "models": {role: {**model, "model": role} for role in roles},
        "questions": {"sources": [{"from": "environment"}]},
        "environment": {"type": "ledger"},
        "exploration": {"roles": roles, **exploration},
        "scorers": {"judged": {"type": "llm-gt", "model": {**model, "model": "grader"}}},
        "rl": {"start": "embedded"},
    }
    return load_config(TreadleConfig, data=plan)


@pytest.mark.parametrize("explores", [True, False])
def test_seed_questions_are_planned_with_the_exploration_that_reads_them(explores: bool) -> None:
    planned = flow_instances(evolving(*["exploration"] * explores, "rollouts", "scores", "report"))
    seeds = ["1/questions@seed", "1/exploration"] if explores else []
    rest = ["1/questions", "1/rollouts@solver", "1/scores@solver", "1/report"]
    assert [str(one.address) for one in planned] == [*seeds, *rest]
    (questions,) = (one for one in planned if str(one.address) == "1/questions")
    assert bool(questions.inputs) is explores


def test_training_on_explored_tasks_waits_for_the_agreement_of_their_grader() -> None:
    planned = flow_instances(evolving("exploration", "selection", "rl", grader="judged", min_agreement=0.8))
    by_address = {str(one.address): one for one in planned}
    rl = by_address["1/rl@phase-1"]
    assert rl.settings.scorers["judged"].type == "llm-gt", "its grades are the rewards"
    behind, queue = set[str](), [rl]
    while queue:
        read = [str(one) for bound in queue.pop().inputs.values() for one in bound]
        queue += [by_address[one] for one in read if one in by_address and one not in behind]
        behind |= {*read}
    assert "1/exploration" in behind, "it fails if grader and environment agree on too little"
    assert by_address["1/exploration"].settings.options.min_agreement == 0.8


def test_recipe_without_questions_is_told_to_add_them(tmp_path: Path) -> None:
    planned = flow_instances(config(tmp_path, f"({MODELS},)"))
    with pytest.raises(ConfigError, match="does not run and the run does not have: add 'questions' to the recipe"):
        flow_part(planned, tmp_path, "r")
