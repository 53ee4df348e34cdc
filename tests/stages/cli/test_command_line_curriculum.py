"""The curriculum as users of the command line see it: plan, refusals, curves, starting again at any phase."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.rollouts.scripted_environment import install_scripted_engine
from support.runs.command_line import Desk, Done
from support.tables.rl_tables import write_policy

from treadle.demo.world_files import write_world

CONFIG = """
[flow]
stages = ["rl"]

[models.policy]
model = "treadle-tutor"
server = { type = "tutor", persona = "noisy" }

[questions]
sources = [{ path = "questions.jsonl", dataset = "world", domain = "qa", split_field = "split" }]

[environment]
python.enabled = false
search.corpus = ["corpus.jsonl"]

[scores]
symbolic = false

[selection]
max_questions = 4

[rl]
start = "start"
variant = "cpu"
group_size = 4
prompts_per_step = 2
mini_batch_prompts = 2
validation_questions = 2
max_prompt_tokens = 4000

[curriculum]
phases = 2
rollouts.samples_per_question = 6
"""
PHASED = [f"1/{stage}@phase-{phase}" for phase in (1, 2) for stage in ("rollouts", "scores", "selection", "rl")]


@dataclass(frozen=True)
class Place:
    """A desk with the scripted engine in its cache."""

    desk: Desk
    engines: dict[str, str]

    def treadle(self, *arguments: str) -> Done:
        return self.desk.treadle(*arguments, **self.engines)

    def states(self) -> dict[str, str]:
        return self.treadle("run", "--run", "r", "--dry-run", "--json").succeeded().json()["plan"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    world = write_world(desk.folder, documents=100, questions=28, heldout_questions=4)
    rows = [json.loads(line) for line in Path(world.questions).read_text().splitlines()]
    desk.write("questions.jsonl", *(row for row in rows if row["source"] == "world-lookup"))
    write_policy(desk.folder / "start")
    (desk.folder / "run.toml").write_text(CONFIG)
    yield Place(desk, install_scripted_engine(desk.folder / "cache"))


@pytest.fixture(scope="module")
def finished(place: Place) -> tuple[Place, Done]:
    """Return a run named `r` that is done, and how it ended."""
    return place, place.treadle("run", "run.toml", "--run", "r").succeeded()


def test_dry_run_lists_every_phase_and_its_limits(place: Place) -> None:
    planned = place.treadle("run", "run.toml", "--run", "dry", "--dry-run", "--json").succeeded().json()
    assert list(planned["plan"]) == ["1/questions", *PHASED]
    expected = {one["address"]: one for one in planned["estimates"]}
    assert list(expected) == [address for address in PHASED if "/rollouts@" in address or "/rl@" in address]
    # At most 4 rows make 2 steps of 2 groups of 4; the last one is validated.
    assert expected["1/rl@phase-2"]["num_units"] == 2 * 2 * 4 + 2
    assert "at most 4 rows" in expected["1/rl@phase-2"]["num_units_source"]
    shown = place.treadle("run", "run.toml", "--run", "dry", "--dry-run").succeeded().out
    assert "- assumed: 2 steps of 2 questions with 4 rollouts each" in shown


@pytest.mark.covers("pareto-28")
def test_phase_starts_only_once_the_previous_policy_exists(place: Place) -> None:
    refused = place.treadle("stage", "1/rl@phase-2", "run.toml", "--run", "fresh")
    refused.failed("1/rl@phase-2 reads rl_rows of 1/selection@phase-2", "run 1/selection@phase-2 first")
    place.treadle("stage", "1/questions", "--run", "fresh").succeeded()
    refused = place.treadle("stage", "1/rollouts@phase-2", "--run", "fresh")
    refused.failed("1/rollouts@phase-2 reads checkpoint of 1/rl@phase-1", "run 1/rl@phase-1 first")
    place.treadle("stage", "1/rl@phase-3", "--run", "fresh").failed("the last one is 1/rl@phase-2", code=2)


def test_phases_complete_with_their_selections_and_metric_changes(finished: tuple[Place, Done]) -> None:
    place, done = finished
    assert re.search(r"4 of \d+ questions are selected", done.out)
    assert re.search(r"reward +0\.100 +0\.200 +▁█", done.out)
    assert done.out.count("The policy of step 2 is exported: score 0.020 on 2 held-out questions, greedily.") == 2


def test_any_phase_can_be_rerun_by_address(finished: tuple[Place, Done]) -> None:
    place, _ = finished
    assert set(place.states().values()) == {"reuse"}
    again = place.treadle("stage", "1/rl@phase-1", "--run", "r", "--force", "--json").succeeded().json()
    assert [(record["address"], record["attempt"]) for record in again] == [("1/rl@phase-1", 2)]
    assert set(place.states().values()) == {"reuse"}, "the same bytes came out"
    (place.desk.folder / "cache" / "script.json").write_text('{"reward": 0.7}')
    place.treadle("stage", "1/rl@phase-1", "--run", "r", "--force").succeeded()
    states = place.states()
    assert [address for address, state in states.items() if state == "run"] == PHASED[4:]
    made = place.treadle("run", "--run", "r", "--json").succeeded().json()
    assert next(record["address"] for record in made if not record["reused"]) == "1/rollouts@phase-2"


@pytest.mark.covers("pareto-28")
def test_rejects_both_sigmas_at_zero_before_any_work(place: Place) -> None:
    plain = ("--set", "rl.reward.sigma_tool=0", "--set", "rl.reward.sigma_length=0")
    refused = place.treadle("run", "run.toml", "--run", "plain", *plain)
    refused.failed("1/rl@phase-1: sigma_tool and sigma_length are both 0", "rl.reward.allow_zero_sigmas", code=2)
    assert not (place.desk.folder / "outputs/runs/plain").exists()


@pytest.mark.covers("pareto-28")
def test_rejects_an_untrainable_plan_before_any_work(place: Place) -> None:
    linear = ("--set", "rl.engine=verl", "--set", "rl.variant=auto", "--set", "rl.lr_scheduler_type=linear")
    for arguments in (
        ("run", "run.toml", "--dry-run"),
        ("run", "run.toml"),
        ("stage", "1/rollouts@phase-1", "run.toml"),
    ):
        refused = place.treadle(*arguments, "--run", "late", *linear)
        refused.failed("1/rl@phase-1: rl.lr_scheduler_type: verl supports constant and cosine, not linear", code=2)
    place.treadle("stage", f"1/rl@phase-{'9' * 5000}", "run.toml", "--run", "late").failed("names no phase", code=2)
    assert not (place.desk.folder / "outputs/runs/late").exists()
