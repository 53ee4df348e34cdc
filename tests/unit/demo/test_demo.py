"""The demo's parts: its config, its announcements, and how it counts results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError
from treadle.datagen.sft_rows import student
from treadle.demo import quickstart
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.demos import FRONTEND
from treadle.demo.quickstart import chosen_demo, demo_configuration
from treadle.demo.results import ModelCounts, first_and_last_rewards
from treadle.demo.steps import COLBENCH_STEPS, EVOLVE_STEPS, FRONTEND_STEPS, GAP_STEPS, step_of
from treadle.tasks.catalog import instance
from treadle.tasks.config import overridden
from treadle.tasks.planning.order import flow_addresses

TUTOR_STAGES = ["1/questions", "1/pools", "1/sft_rows", "1/rollouts@tutor", "1/scores@tutor", "1/report"]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """Return the set of installed engines; it is empty at first, and nothing is really installed or downloaded."""
    there: set[str] = set()
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(quickstart, "is_installed", there.__contains__)
    monkeypatch.setattr(quickstart, "install", lambda engine, notify: there.add(engine))
    monkeypatch.setattr(quickstart, "choose_variant", lambda engine: "cpu")
    monkeypatch.setattr(quickstart, "embedded_tokenizer", lambda notify: tmp_path / "tokenizer")
    monkeypatch.setattr(student, "embedded_folder", lambda part: tmp_path / part)
    return there


def score(**columns: Any) -> dict[str, Any]:
    return {"correct": False, "is_valid_answer": False, "calls_executed": 0, "failed_calls": 0, **columns}


def test_missing_engines_are_announced_with_size_and_time_before_installing(engines: set[str], tmp_path: Path) -> None:
    said: list[str] = []
    name, config = demo_configuration("flywheel", tmp_path, fresh=False, tutor_only=False, notify=said.append)
    assert name == "demo" and engines == {"serve", "sft", "trl"}
    assert said[0] == (
        f"the demo installs, once, into {tmp_path / 'cache'}: vLLM, about 3 minutes and 2.5 GB; "
        "LLaMA-Factory, about 3 minutes and 5.2 GB; TRL, about 2 minutes and 1.5 GB"
    )
    assert config.flow.models == ("tutor", "base", "tuned", "reinforced")
    told = len(said)
    demo_configuration("flywheel", tmp_path, fresh=False, tutor_only=False, notify=said.append)
    assert len(said) == told + 1, "what is installed is not told of again"


def test_tutor_alone_needs_no_engine(engines: set[str], tmp_path: Path) -> None:
    name, config = demo_configuration("flywheel", tmp_path, fresh=False, tutor_only=True, notify=lambda line: None)
    assert name == "demo-tutor" and not engines
    assert list(map(str, flow_addresses(config))) == TUTOR_STAGES


def test_invalid_key_is_reported_before_installing_anything(engines: set[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sft\.max_row'; did you mean 'max_rows'"):
        demo_configuration(
            "flywheel", tmp_path, fresh=False, tutor_only=False, overrides=("sft.max_row=3",), notify=print
        )
    assert not engines and not (tmp_path / "demo-world").exists()


def test_fresh_demo_run_gets_a_new_name_and_is_the_one_resumed_later(engines: set[str], tmp_path: Path) -> None:
    def name(*, fresh: bool, tutor_only: bool = False) -> str:
        return demo_configuration("flywheel", tmp_path, fresh=fresh, tutor_only=tutor_only, notify=lambda line: None)[0]

    assert name(fresh=False) == name(fresh=True) == "demo"
    for run in ("demo", "demo-tutor", "demo-2", "demo-10", "demo-of-mine"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "run.json").touch()
    assert name(fresh=False) == "demo-10" and name(fresh=True) == "demo-11"
    assert name(fresh=False, tutor_only=True) == "demo-tutor" and name(fresh=True, tutor_only=True) == "demo-tutor-2"


def test_keys_can_be_overridden(engines: set[str], tmp_path: Path) -> None:
    _, config = demo_configuration(
        "flywheel",
        tmp_path,
        fresh=False,
        tutor_only=False,
        overrides=("sft.max_rows=3",),
        notify=lambda line: None,
    )
    assert config.sft.max_rows == 3


def test_every_slow_step_is_explained(engines: set[str], tmp_path: Path) -> None:
    _, config = demo_configuration("flywheel", tmp_path, fresh=False, tutor_only=False, notify=lambda line: None)
    silent = [str(address) for address in flow_addresses(config) if not step_of(address).words]
    scored = ("phase-1", "tutor", "base", "tuned", "reinforced")
    assert silent == ["1/questions", *(f"1/scores@{model}" for model in scored)]


GAP_STAGES = [
    "questions",
    "rollouts@tutor",
    "scores@tutor",
    "sft_rows",
    "sft",
    "rollouts@tuned",
    "scores@tuned",
    "report",
]


def test_gap_demo_trains_one_model_on_rows_of_the_tutor_alone(engines: set[str], tmp_path: Path) -> None:
    name, config = demo_configuration("gap", tmp_path, fresh=False, tutor_only=False, notify=lambda line: None)
    assert name == "demo-gap" and engines == {"serve", "sft"}
    addresses = flow_addresses(config)
    assert [str(address) for address in addresses] == [f"1/{stage}" for stage in GAP_STAGES]
    splits = {
        str(address): overridden(config, address, config.rollouts).split
        for address in addresses
        if address.stage == "rollouts"
    }
    assert splits == {"1/rollouts@tutor": "train", "1/rollouts@tuned": "heldout"}
    silent = [str(address) for address in addresses if not step_of(address, GAP_STEPS).words]
    assert silent == ["1/questions", "1/scores@tutor", "1/scores@tuned"]


def test_gap_demo_of_the_tutor_needs_no_engine_and_measures_held_out_questions(
    engines: set[str], tmp_path: Path
) -> None:
    name, config = demo_configuration("gap", tmp_path, fresh=False, tutor_only=True, notify=lambda line: None)
    assert name == "demo-gap-tutor" and not engines
    addresses = {str(address): address for address in flow_addresses(config)}
    assert list(addresses) == ["1/questions", "1/rollouts@tutor", "1/scores@tutor", "1/report"]
    assert overridden(config, addresses["1/rollouts@tutor"], config.rollouts).split == "heldout"
    assert {one.environment for one in config.questions.sources} == {"sequential", "parallel"}


def test_colbench_demo_trains_a_start_on_the_tutors_dialogues_and_a_policy_on_its_own(
    engines: set[str], tmp_path: Path
) -> None:
    write_byte_tokenizer(tmp_path / "tokenizer")
    name, config = demo_configuration("colbench", tmp_path, fresh=False, tutor_only=False, notify=lambda line: None)
    assert name == "demo-colbench" and engines == {"serve", "sft", "trl"}
    addresses = flow_addresses(config)
    asked = {
        address.qualifier: overridden(config, address, config.rollouts).datasets
        for address in addresses
        if address.stage == "rollouts"
    }
    assert asked == {
        "tutor": ("programs-taught",),
        "start": ("programs-train", "programs-heldout"),
        "policy": ("programs-heldout",),
    }
    inputs = {
        str(one): {name: list(map(str, read)) for name, read in instance(config, one).inputs.items()}
        for one in addresses
    }
    assert inputs["1/sft_rows@start"]["rollouts"] == ["1/rollouts@tutor"]
    assert inputs["1/sft@start"]["sft_rows"] == ["1/sft_rows@start"]
    assert inputs["1/preferences@trajectory"]["rollouts"] == ["1/rollouts@start"]
    trained = ("1/dpo@critic", "1/dpo@policy")
    assert [inputs[one]["checkpoint"] for one in trained] == [["1/sft@start"]] * 2
    silent = [str(one) for one in addresses if not step_of(one, COLBENCH_STEPS).words]
    assert silent == ["1/questions"]


def test_colbench_demo_of_the_tutor_needs_no_engine_and_measures_held_out_tasks(
    engines: set[str], tmp_path: Path
) -> None:
    name, config = demo_configuration("colbench", tmp_path, fresh=False, tutor_only=True, notify=lambda line: None)
    assert name == "demo-colbench-tutor" and not engines
    addresses = {str(address): address for address in flow_addresses(config)}
    assert list(addresses) == ["1/questions", "1/rollouts@tutor", "1/scores@tutor", "1/report"]
    assert overridden(config, addresses["1/rollouts@tutor"], config.rollouts).datasets == ("programs-heldout",)


def test_demo_of_pages_trains_nothing_and_measures_with_the_embedded_network(engines: set[str], tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path / "tokenizer")
    name, config = demo_configuration(FRONTEND, tmp_path, fresh=False, tutor_only=False, notify=lambda line: None)
    assert name == "demo-colbench-frontend" and engines == {"serve", "similarity"}
    addresses = flow_addresses(config)
    silent = [str(one) for one in addresses if not step_of(one, FRONTEND_STEPS).words]
    assert silent == ["1/questions"]
    assert {one.qualifier for one in addresses if one.stage == "rollouts"} == {"hasty", "tutor"}
    assert [str(instance(config, one).address) for one in addresses] == list(map(str, addresses))
    assert len((tmp_path / f"{name}-world/questions.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize(("name", "tutor_only"), [("gap", False), ("colbench", True)])
def test_option_for_pages_is_refused_where_it_means_nothing(name: str, tutor_only: bool) -> None:
    with pytest.raises(ConfigError, match="--frontend is an option|leave it out"):
        chosen_demo(name, frontend=True, tutor_only=tutor_only)
    assert chosen_demo("colbench", frontend=True, tutor_only=False) == (FRONTEND, "treadle demo colbench --frontend")
    assert chosen_demo("flywheel", frontend=False, tutor_only=True) == ("flywheel", "treadle demo")


def test_evolve_demo_trains_on_tasks_that_agents_made_and_measures_at_a_service(
    engines: set[str], tmp_path: Path
) -> None:
    write_byte_tokenizer(tmp_path / "tokenizer")
    name, config = demo_configuration("evolve", tmp_path, fresh=False, tutor_only=False, notify=lambda line: None)
    assert name == "demo-evolve" and engines == {"serve", "sft", "trl"}
    addresses = flow_addresses(config)
    silent = [str(one) for one in addresses if not step_of(one, EVOLVE_STEPS).words]
    scored = ("tutor", "start", "phase-1", "policy")
    assert silent == ["1/questions@seed", "1/questions", *(f"1/scores@{one}" for one in scored)]
    assert [one.environment for one in config.questions.sources] == ["default", "served"]
    assert config.rl.credit.type == "attribution" and config.rl.experience.rollout_mode == "mixed"
    assert [companion.name for companion in config.companions] == ["ledger-service", "helpers"]
    # All its instances can be planned: settings, inputs and models fit together.
    assert [str(instance(config, one).address) for one in addresses] == list(map(str, addresses))


def test_evolve_demo_of_the_tutor_needs_no_engine_and_trains_nothing(engines: set[str], tmp_path: Path) -> None:
    name, config = demo_configuration("evolve", tmp_path, fresh=False, tutor_only=True, notify=lambda line: None)
    assert name == "demo-evolve-tutor" and not engines
    assert list(map(str, flow_addresses(config))) == [
        "1/questions@seed",
        "1/exploration",
        "1/questions",
        "1/rollouts@tutor",
        "1/scores@tutor",
        "1/experience",
        "1/report",
    ]


def test_rollouts_are_counted_by_outcome() -> None:
    rows = [
        score(correct=True, is_valid_answer=True, calls_executed=2, failed_calls=1),
        score(is_valid_answer=True, calls_executed=1),
        score(correct=None),
        score(),
    ]
    assert ModelCounts.of(rows) == ModelCounts(4, num_right=1, num_valid=2, num_calls=3, num_failed_calls=1)
    assert ModelCounts.of([score()]).num_calls == 0
    assert ModelCounts.of(rows[:2]) + ModelCounts.of(rows[2:]) == ModelCounts.of(rows)


def test_rewards_are_reported_for_the_first_and_last_group_of_a_question() -> None:
    rewards = (("a", 1, 0.0), ("a", 1, 1.0), ("b", 2, 0.5), ("a", 3, None), ("a", 5, 2.0), ("a", 4, 9.0))
    rows = [{"question_key": key, "step": step, "reward": reward} for key, step, reward in rewards]
    assert first_and_last_rewards(rows) == [(0.5, 2.0)], "b was trained on once"
