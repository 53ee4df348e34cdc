"""Phases in sequence: sampled from the previous policy, selected, trained, resumed, started again.

The tutor replaces every policy, and a scripted process replaces the engine of `rl`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.runs.command_line import tutor
from support.servers.stubbed_servers import model_folder, stubbed_servers
from support.tables.rl_tables import scripted, write_policy

from treadle.core.config import load_config
from treadle.core.errors import EngineError, RunError, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import planned_action
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.demo.world_files import write_world
from treadle.tasks.catalog import flow_instances, instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.planning.run_setup import open_run
from treadle.tasks.run_instances import run_instance, run_instances

CONFIG: dict[str, Any] = {
    "flow": {"stages": ["rl", "rollouts", "scores", "report"], "models": ["reinforced"]},
    "environment": {"python": {"enabled": False}},
    "rl": {
        "group_size": 4,
        "prompts_per_step": 2,
        "mini_batch_prompts": 2,
        "save_steps": 2,
        "variant": "cpu",
        "validation_questions": 2,
        "max_prompt_tokens": 4000,
    },
    "curriculum": {"phases": 2, "sampling_model": "policy", "rollouts": {"samples_per_question": 6}},
    "selection": {"max_questions": 4},
    "overrides": {"1/selection@phase-2": {"exclude_previous": True}},
    "rollouts": {"split": "heldout"},
    "scores": {"symbolic": False},
}


@dataclass
class Curriculum:
    """A run over a small world, and which models were served in it."""

    config: TreadleConfig
    run: Run
    start: Path
    served: list[str] = field(default_factory=list)

    def make(self, script: dict[str, Any] | None = None) -> dict[str, StageRecord]:
        """Run or resume the whole flow; return records by address."""
        made, items = {}, flow_instances(self.config)
        with scripted(self.start.parent, **(script or {})), run_instances(items, self.run, self.config) as turns:
            for turn in turns:
                made[str(turn.instance.address)] = run_instance(turn.instance, self.run, servers=turn.servers)
        return made

    def policy(self, address: str) -> Path:
        """Folder of the model that an instance made."""
        return model_folder(self.run, address)

    def instance(self, address: str) -> Instance:
        return instance(self.config, Address.parse(address))

    def again(self, address: str, script: dict[str, Any] | None = None) -> StageRecord:
        """Run one instance although nothing has changed."""
        with scripted(self.start.parent, **(script or {})):
            return run_instance(self.instance(address), self.run, force=True)

    def rows(self, address: str, kind: str) -> list[dict[str, Any]]:
        record = self.run.record(Address.parse(address))
        assert record is not None
        return list(self.run.rows(record.outputs[kind]).rows())


World = tuple[dict[str, Any], str, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield a configuration whose models are not served yet, the URL of a tutor that errs, and an initial policy."""
    folder = tmp_path_factory.mktemp("world")
    files = write_world(folder, documents=100, questions=28, heldout_questions=4)
    lines = files.questions.read_text().splitlines(keepends=True)
    (folder / "asked.jsonl").write_text("".join(line for line in lines if json.loads(line)["source"] == "world-lookup"))
    source = {"path": str(folder / "asked.jsonl"), "dataset": "world", "domain": "qa", "split_field": "split"}
    start = write_policy(folder / "start")
    data = {
        **CONFIG,
        "questions": {"sources": [source]},
        "environment": {**CONFIG["environment"], "search": {"corpus": [str(files.corpus)]}},
        "rl": {**CONFIG["rl"], "start": str(start)},
    }
    with tutor("--persona", "noisy") as url:
        yield data, url, start


@contextmanager
def begun(world: World, root: Path, **models: Any) -> Iterator[Curriculum]:
    """Yield a run whose servers are all the tutor; it records what they would have loaded."""
    data, url, start = world
    config = load_config(TreadleConfig, data={**data, "models": models})
    made = Curriculum(config, open_run(root, "r", config), start)
    with stubbed_servers(lambda server: url) as made.served:
        yield made


SERVED = {
    "policy": {"model": "treadle-tutor", "server": {"type": "vllm"}},
    "reinforced": {"model": "treadle-tutor", "server": {"type": "vllm", "model": "1/rl@phase-2"}},
}


Made = tuple[Curriculum, dict[str, StageRecord]]


@pytest.fixture(scope="module")
def done(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Two phases and a report, made."""
    with begun(world, tmp_path_factory.mktemp("root"), **SERVED) as made:
        yield made, made.make()


def test_every_phase_samples_from_the_previous_policy(done: Made) -> None:
    made, records = done
    assert list(records) == [str(address) for address in flow_addresses(made.config)]
    first, second = (made.policy(f"1/rl@phase-{phase}") for phase in (1, 2))
    assert made.served == [str(made.start), str(first), str(second)], "the last one is measured for the report"
    assert (first / "step.txt").read_text() == "2"
    bound = {name: [ref.address for ref in refs] for name, refs in records["1/rollouts@phase-2"].inputs.items()}
    assert bound == {"questions": ["1/questions"], "checkpoint": ["1/rl@phase-1"]}
    assert records["1/rl@phase-2"].inputs["checkpoint"] == records["1/rollouts@phase-2"].inputs["checkpoint"]


def test_sigmas_decrease_and_everything_else_stays_the_same(done: Made) -> None:
    made, records = done
    plans = []
    for phase in (1, 2):
        checkpoint = made.run.rows(records[f"1/rl@phase-{phase}"].outputs["checkpoint"])
        plans.append(json.loads(checkpoint.read_file("plan.json")))
    options = [plan["options"] for plan in plans]
    assert [(one["reward"]["sigma_tool"], one["reward"]["sigma_length"]) for one in options] == [
        (0.1, 0.1),
        (0.05, 0.05),
    ]
    assert {key for key in options[0] if options[0][key] != options[1][key]} == {"start", "reward"}
    assert [(plan["phase"], plan["phases"], plan["start"]) for plan in plans] == [
        (1, 2, str(made.start)),
        (2, 2, "1/rl@phase-1"),
    ]


def test_each_phase_has_its_own_rollouts_and_may_exclude_trained_rows(done: Made) -> None:
    made, records = done
    names = ("phase-1", "phase-2", "reinforced")
    rollouts = {name: made.rows(f"1/rollouts@{name}", "rollouts") for name in names}
    assert all({row["model"] for row in rows} == {name} for name, rows in rollouts.items())
    assert len({row["rollout_key"] for rows in rollouts.values() for row in rows}) == sum(map(len, rollouts.values()))
    train = {row["question_key"] for row in rollouts["phase-1"]}
    assert train == {row["question_key"] for row in rollouts["phase-2"]}
    assert train.isdisjoint(row["question_key"] for row in rollouts["reinforced"])
    selected = [{row["question_key"] for row in made.rows(f"1/selection@phase-{k}", "rl_rows")} for k in (1, 2)]
    assert len(selected[0]) == 4 and selected[1] and selected[0].isdisjoint(selected[1])
    overlap = {name: n for name, n in records["1/selection@phase-2"].metrics.items() if name.startswith("overlap.")}
    assert sum(overlap.values()) == 4, overlap


def test_finished_curriculum_is_not_rerun(done: Made) -> None:
    made, records = done
    served = len(made.served)
    again = made.make({"at": 1, "do": "die"})
    assert all(record.reused for record in again.values()) and len(made.served) == served


def test_report_contains_the_policy_of_the_last_phase(done: Made) -> None:
    made, _ = done
    assert {row["model"] for row in made.rows("1/report", "summary")} == {"reinforced"}


@pytest.mark.covers("pareto-28")
@pytest.mark.sweep
def test_retraining_a_phase_reruns_its_successors(world: World, tmp_path: Path) -> None:
    with begun(world, tmp_path, **SERVED) as made:
        for item in flow_instances(made.config)[5:]:
            assert planned_action(item, made.run) == "missing input", item.address
        with pytest.raises(EngineError, match="signal 9"):
            made.make({"at": 1, "do": "die"})
        assert not made.run.record(Address.parse("1/rl@phase-1"))
        with pytest.raises(RunError, match="1/rollouts@phase-2 reads checkpoint of 1/rl@phase-1, .* run 1/rl@phase-1"):
            run_instance(made.instance("1/rollouts@phase-2"), made.run)
        made.make()
        assert len(made.served) == 3, "rollouts that were done before the kill are not made again"
        same = made.again("1/rl@phase-1")
        assert same.attempt == 3 and planned_action(made.instance("1/rollouts@phase-2"), made.run) == "reuse"
        other = made.again("1/rl@phase-1", {"reward": 0.7})
        assert other.outputs != same.outputs
        assert planned_action(made.instance("1/selection@phase-1"), made.run) == "reuse"
        assert planned_action(made.instance("1/rl@phase-2"), made.run) == "run"
        records = made.make()
        assert next(address for address, record in records.items() if not record.reused) == "1/rollouts@phase-2"
        assert records["1/rl@phase-2"].attempt == 2


@pytest.mark.covers("pareto-28")
def test_user_run_servers_must_declare_that_they_serve_the_policy(world: World, tmp_path: Path) -> None:
    _, url, _ = world
    elsewhere = {"policy": {"model": "treadle-tutor", "endpoints": [{"url": url}], "outage_wait_s": 1.0}}
    with begun(world, tmp_path, **{**SERVED, **elsewhere}) as made:
        with pytest.raises(TreadleError, match="1/rl@phase-1") as refused:
            made.make()
        assert "treadle-tutor" in str(refused.value) and made.run.record(Address.parse("1/rl@phase-1"))
        assert not made.run.record(Address.parse("1/rollouts@phase-2"))
