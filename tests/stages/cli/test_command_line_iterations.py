"""Iterations as users of the command line see them: plan, resuming, parts of the flow, reruns, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rollouts.scripted_environment import install_scripted_engine
from support.runs.command_line import Desk, Done
from support.tables.rl_tables import write_policy

from treadle.demo.world_files import write_world

CONFIG = """
[flow]
stages = ["rl", "rollouts", "scores", "report"]
models = ["tutor"]

[models.tutor]
model = "treadle-tutor"
server = { type = "tutor", persona = "noisy" }

[questions]
sources = [{ path = "questions.jsonl", dataset = "world", domain = "qa", split_field = "split" }]

[environment]
python.enabled = false
search.corpus = ["corpus.jsonl"]

[rollouts]
split = "heldout"

[scores]
symbolic = false

[report]
bootstrap_samples = 100

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
phases = 1
rollouts.samples_per_question = 6
"""
NAMES = [
    "questions", "rollouts@phase-1", "scores@phase-1", "selection@phase-1", "rl@phase-1", "rollouts@tutor",
    "scores@tutor", "report",
]  # fmt: skip
TWICE = ("--set", "flow.iterations=2")


class Place:
    """A desk with the scripted engine in its cache."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk(folder)
        world = write_world(folder, documents=100, questions=28, heldout_questions=4)
        rows = [json.loads(line) for line in Path(world.questions).read_text().splitlines()]
        self.desk.write("questions.jsonl", *(row for row in rows if row["source"] == "world-lookup"))
        write_policy(folder / "start")
        (folder / "run.toml").write_text(CONFIG)
        self._engines = install_scripted_engine(folder / "cache")

    def treadle(self, *arguments: str) -> Done:
        return self.desk.treadle(*arguments, **self._engines)

    def made(self, *arguments: str) -> dict[str, str]:
        """Return what a run did about each instance."""
        records = self.treadle("run", "--run", "r", "--json", *arguments).succeeded().json()
        return {one["address"]: "reused" if one["reused"] else one["reused_from"] or "made" for one in records}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a run `r` of one iteration that is done."""
    made = Place(tmp_path_factory.mktemp("desk"))
    made.treadle("run", "run.toml", "--run", "r").succeeded()
    return made


def of(iteration: int, *names: str) -> list[str]:
    return [f"{iteration}/{name}" for name in names]


def test_new_run_plan_lists_all_iterations_and_counts_equal_work_once(place: Place) -> None:
    planned = place.treadle("run", "run.toml", "--run", "new", "--dry-run", "--json", *TWICE).succeeded().json()
    assert list(planned["plan"]) == of(1, *NAMES) + of(2, *NAMES)
    same = {address: planned["why"][address] for address, action in planned["plan"].items() if action == "take over"}
    assert same == {f"2/{name}": f"the same as 1/{name}" for name in ("questions", "rollouts@tutor", "scores@tutor")}
    estimated = [one["address"] for one in planned["estimates"]]
    assert estimated == [
        *of(1, "rollouts@phase-1", "rl@phase-1", "rollouts@tutor"), *of(2, "rollouts@phase-1", "rl@phase-1"),
    ]  # fmt: skip


def test_flow_without_training_has_one_iteration(place: Place) -> None:
    stages = ("--set", 'flow.stages=["rollouts"]')
    place.treadle("run", "run.toml", "--run", "new", *TWICE, *stages).failed("no stage of the flow trains", code=2)


def test_finished_run_can_be_extended_and_rerun_from_any_instance(place: Place) -> None:
    refused = place.treadle("run", "--run", "r", *TWICE, "--from", "2/selection@phase-1")
    refused.failed("from 2/selection@phase-1", "2/rollouts@phase-1 (read by 2/selection@phase-1)")
    place.treadle("run", "--run", "r", *TWICE, "--from", "3/report").failed("'3/report' is not in this flow", code=2)

    told = place.treadle("run", "--run", "r", *TWICE, "--without", "2/rl@phase-1", "--dry-run").succeeded().out
    assert "2/rl@phase-1 is left out: requested by --without" in told
    made = place.made(*TWICE, "--without", "2/rl@phase-1")
    assert made == {
        **dict.fromkeys(of(1, *NAMES), "reused"),
        **{f"2/{name}": f"1/{name}" for name in ("questions", "rollouts@tutor", "scores@tutor")},
        # The tutor answers alike for every policy, but the rows name the policy.
        **dict.fromkeys(of(2, "rollouts@phase-1", "scores@phase-1", "selection@phase-1", "report"), "made"),
    }
    assert place.made("--from", "2/rl@phase-1")["2/rl@phase-1"] == "made"
    status = place.treadle("status", "--run", "r").succeeded().out
    assert "the same as 1/rollouts@tutor" in status

    again = place.made("--force", "--from", "2/rl@phase-1")
    assert again == {
        "2/rl@phase-1": "made", "2/rollouts@tutor": "reused", "2/scores@tutor": "reused", "2/report": "made",
    }  # fmt: skip
    assert set(place.made().values()) == {"reused"}, "all results are reused"
