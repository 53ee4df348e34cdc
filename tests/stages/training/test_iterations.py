"""Whole iterations: each starts from the last checkpoint of the previous one; killed, resumed, extended.

The tutor replaces every served model, a function the engine of `sft`, and a scripted process that of
`rl`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.runs.command_line import tutor
from support.servers.stubbed_servers import model_folder, stubbed_servers
from support.tables.rl_tables import scripted, write_policy

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.config import VllmServer
from treadle.core.errors import EngineError
from treadle.core.runs.execute import planned_action
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.demo.world_files import write_world
from treadle.sft import stage as sft_stage
from treadle.sft.launch import EngineOptions, Listener, Training, TrainingFolder, TrainingStep
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.planning.run_setup import open_run
from treadle.tasks.run_instances import run_instance, run_instances

CONFIG: dict[str, Any] = {
    "flow": {
        "stages": ["pools", "sft_rows", "sft", "rl", "rollouts", "scores", "report"],
        "models": ["base", "tuned", "reinforced"],
    },
    "environment": {"python": {"enabled": False}},
    "pools": {"rounds": 1, "max_questions": 6},
    "rl": {
        "start": "1/sft",
        "group_size": 4,
        "prompts_per_step": 2,
        "mini_batch_prompts": 2,
        "save_steps": 2,
        "variant": "cpu",
        "validation_questions": 2,
        "max_prompt_tokens": 4000,
    },
    "curriculum": {"phases": 1, "sampling_model": "base", "rollouts": {"samples_per_question": 6}},
    "selection": {"max_questions": 4},
    "rollouts": {"split": "heldout"},
    "scores": {"symbolic": False},
    "report": {"bootstrap_samples": 100},
}


@dataclass
class Loop:
    """A run over a small world, and which models were served in it."""

    data: dict[str, Any]
    root: Path
    start: Path
    served: list[str] = field(default_factory=list)
    has_learnt: bool = False
    """Whether a reinforced policy makes no mistakes any more."""

    def config(self, iterations: int) -> TreadleConfig:
        return load_config(TreadleConfig, data=self.data, overrides=(f"flow.iterations={iterations}",))

    def run(self, iterations: int) -> Run:
        return open_run(self.root, "r", self.config(iterations))

    def make(self, iterations: int, script: dict[str, Any] | None = None) -> dict[str, StageRecord]:
        """Run or resume the whole flow; return records by address."""
        run, config, made = self.run(iterations), self.config(iterations), {}
        with scripted(self.start.parent, **(script or {})), run_instances(flow_instances(config), run, config) as turns:
            for turn in turns:
                made[str(turn.instance.address)] = run_instance(turn.instance, run, servers=turn.servers)
        return made

    def policy(self, address: str) -> str:
        """Folder of the model that an instance made."""
        return str(model_folder(self.run(1), address))


def fine_tuned(start: Path) -> Any:
    """Replace `fine_tune`: return the start model unchanged."""

    def fine_tune(
        folder: TrainingFolder, yaml: str, options: EngineOptions, listener: Listener, prompt: Any
    ) -> Training:
        prepared = {"tokenizer_digest": ChatTokenizer.load(start).digest, "revision": ""}
        listener.prepared(prepared)
        listener.begin(1, 0)
        shutil.copytree(start, folder.model)
        step = TrainingStep(**{name: 1 for name in TrainingStep.__slots__})
        return Training(
            model=folder.model, steps=(step,), num_steps=1, num_epochs=1.0, num_trained_parameters=1, resumed_step=0,
            seconds=1.0, greedy=None, versions={"llamafactory": "0"}, **prepared,
        )  # fmt: skip

    return fine_tune


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """Yield a loop that was not run yet, whose servers are all the tutor; it records what they would have loaded."""
    folder = tmp_path_factory.mktemp("world")
    files = write_world(folder, documents=100, questions=28, heldout_questions=4)
    lines = files.questions.read_text().splitlines(keepends=True)
    (folder / "asked.jsonl").write_text("".join(line for line in lines if json.loads(line)["source"] == "world-lookup"))
    source = {"path": str(folder / "asked.jsonl"), "dataset": "world", "domain": "qa", "split_field": "split"}
    start = write_policy(folder / "start")
    models = {
        name: {"model": "treadle-tutor", "tokenizer": str(start), "server": {"type": "vllm", "model": model}}
        for name, model in (("base", str(start)), ("tuned", "1/sft"), ("reinforced", "1/rl@phase-1"))
    }
    data = {
        **CONFIG,
        "models": models,
        "questions": {"sources": [source]},
        "environment": {**CONFIG["environment"], "search": {"corpus": [str(files.corpus)]}},
        "sft": {"model": str(start), "plot_loss": False},
    }
    made = Loop(data, tmp_path_factory.mktemp("root"), start)
    given = ("--tokenizer", str(start), "--persona")
    with tutor(*given, "noisy") as noisy, tutor(*given, "strong") as strong, patched(made, noisy, strong):
        yield made


@contextmanager
def patched(loop: Loop, noisy: str, strong: str) -> Iterator[None]:
    """Replace engines: every served model is the tutor."""

    def url_of(server: VllmServer) -> str:
        is_reinforced = (Path(server.model) / "step.txt").exists()
        return strong if loop.has_learnt and is_reinforced else noisy

    with stubbed_servers(url_of) as loop.served, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft_stage, "fine_tune", fine_tuned(loop.start))
        yield


def test_killed_iterations_resume_from_the_last_checkpoint_and_can_be_extended(loop: Loop) -> None:
    first = loop.make(1)
    sft, rl = (loop.policy(f"1/{name}") for name in ("sft", "rl@phase-1"))
    start = str(loop.start)
    assert loop.served == [start, sft, start, sft, rl], "pools, phase 1, base, tuned, reinforced"

    loop.served.clear()
    loop.has_learnt = True
    with pytest.raises(EngineError, match="signal 9"):
        loop.make(2, {"at": 1, "do": "die"})
    assert loop.served == [rl, loop.policy("2/sft")], "pools of the second iteration begin with the last checkpoint"
    loop.served.clear()
    second = loop.make(2)
    assert loop.served == [loop.policy("2/sft"), loop.policy("2/rl@phase-1")], "tuned and reinforced; base is the same"
    assert list(second) == [str(address) for address in flow_addresses(loop.config(2))]
    assert {name for name, record in second.items() if name.startswith("1/")} == first.keys()
    assert all(second[name].reused for name in first), "nothing of the first iteration is made again"

    loop.served.clear()
    third = loop.make(3)
    made = {name for name, record in third.items() if not record.reused}
    assert made == {name for name in third if name.startswith("3/")}
    assert loop.served == [loop.policy(f"{name}") for name in ("2/rl@phase-1", "3/sft", "3/sft", "3/rl@phase-1")]

    run = loop.run(3)
    assert all(planned_action(item, run) == "reuse" for item in flow_instances(loop.config(3)))
    for iteration in (2, 3):
        bound = third[f"{iteration}/sft"].inputs["checkpoint"]
        assert [ref.address for ref in bound] == [f"{iteration - 1}/rl@phase-1"]
        assert third[f"{iteration}/pools"].inputs["checkpoint"] == bound
        same = {name: record.reused_from for name, record in third.items() if record.reused_from}
        shared = {name: f"1/{name}" for name in ("questions", "rollouts@base", "scores@base")}
        assert {f"{iteration}/{name}": origin for name, origin in shared.items()}.items() <= same.items()
        assert f"{iteration}/rollouts@reinforced" not in same and f"{iteration}/sft" not in same
    assert not any(name.startswith("1/") for name in same)
    checkpoints = {loop.policy(f"{iteration}/{name}") for iteration in (1, 2, 3) for name in ("sft", "rl@phase-1")}
    assert len(checkpoints) == 6, "each says of which instance it is"
    rows = list(run.rows(third["3/report"].outputs["summary"]).rows())
    right = {row["model"]: row["value"] for row in rows if row["figure"] == "accuracy"}
    assert list(right) == ["base", "tuned", "1/reinforced", "2/reinforced"], "what is the same is there once"
    assert right["2/reinforced"] > right["1/reinforced"]
