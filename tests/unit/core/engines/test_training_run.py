"""A third kind of training, as small as it can be: the flow of `TrainingRun` without `sft` and `rl`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from treadle.core.engines import training_engine
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.training import Advice, EngineFolder, EngineOptions
from treadle.core.engines.training_engine import TrainingEngine
from treadle.core.engines.training_run import TrainingListener, TrainingResult, TrainingRun
from treadle.core.errors import ConfigError, EngineError

ENGINE = """
import json, pathlib, sys
command, job = sys.argv[-2], json.loads(pathlib.Path(sys.argv[-1]).read_text())
def tell(event, **facts):
    with open(job["events"], "a") as file:
        file.write(json.dumps({"event": event, **facts}) + chr(10))
if command == job["fail"]:
    tell("error", kind=job["kind"], message="Error: it is")
    sys.exit(job["code"])
if command == "check":
    tell("prepared", versions={"dpo": "0"})
elif command == "train":
    first = int(job["resume"].rpartition("-")[2]) if job["resume"] else 0
    tell("begin", resumed_step=first, num_steps=3, num_trained_parameters=5, device="none")
    for step in range(first + 1, 4):
        tell("step", step=step, loss=1.0 / step, margin=0.5, seconds=1.0)
        state = pathlib.Path(job["output"]) / f"checkpoint-{step}"
        state.mkdir(parents=True)
        (state / "treadle-complete").touch()
        if step == job["fail_at"]:
            tell("error", kind=job["kind"], message="Error: it is")
            sys.exit(job["code"])
    tell("end", step=3, epoch=1.0)
else:
    pathlib.Path(job["model"]).mkdir()
"""


@dataclass(frozen=True, slots=True)
class PairStep:
    step: int
    loss: float
    margin: float
    seconds: float


class Dpo(TrainingEngine):
    environment = "trl"
    module = "treadle.dpo.engine"


@dataclass(kw_only=True)
class PreferenceRun(TrainingRun[PairStep]):
    name = "preference tuning"

    beta: float
    script: dict[str, Any]

    def _store_config(self) -> bool:
        path, text = self.folder.path / "beta.txt", str(self.beta)
        same = path.is_file() and path.read_text() == text
        path.write_text(text)
        return same and "prepared" in self.events.last

    def _job(self, command: str) -> dict[str, Any]:
        return {"beta": self.beta, "model": str(self.folder.model), **self.script}

    def _advice(self, command: str) -> Advice:
        return Advice(refused="dpo refuses the configuration", memory="lower the batch", killed="lower the batch")


@dataclass
class Tuning:
    """Trainings of one folder, and the messages of all."""

    folder: EngineFolder
    said: list[str] = field(default_factory=list)

    def train(
        self, *, beta: float = 0.1, fail: str = "", fail_at: int = 0, kind: str = "", code: int = 1
    ) -> TrainingResult[PairStep]:
        run = PreferenceRun(
            engine=Dpo(type="dpo"),
            folder=self.folder,
            options=EngineOptions(variant="cpu", stall_timeout_s=60.0),
            events=EventLog(self.folder.events, PairStep),
            listener=TrainingListener(notify=self.said.append),
            beta=beta,
            script={"fail": fail, "fail_at": fail_at, "kind": kind, "code": code},
        )
        run.run()
        return TrainingResult(**run.facts())

    def commands(self) -> list[str]:
        return sorted(path.stem for path in self.folder.logs.iterdir())


@pytest.fixture
def tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuning:
    (tmp_path / "work").mkdir()
    (tmp_path / "engine.py").write_text(ENGINE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(tmp_path / "engine.py")])} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(training_engine, "python_of", lambda engine, variant: python)
    return Tuning(EngineFolder(tmp_path / "work"))


def test_training_is_checked_trained_exported_and_not_repeated(tuning: Tuning) -> None:
    done = tuning.train()
    assert [(step.step, step.margin) for step in done.steps] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert (done.num_steps, done.resumed_step, done.versions) == (3, 0, {"dpo": "0"}) and done.model.is_dir()
    assert tuning.said == ["training 5 parameters on none: 3 steps"]
    assert json.loads((tuning.folder.path / "job.json").read_text())["beta"] == 0.1
    assert tuning.train(fail="check", kind="other") == done


def test_only_a_changed_configuration_is_checked_again(tuning: Tuning) -> None:
    with pytest.raises(EngineError, match=r"preference tuning \(train\) failed with code 1 \(Error: it is\)"):
        tuning.train(fail="train", kind="other")
    with pytest.raises(ConfigError, match="dpo refuses the configuration: it is"):
        tuning.train(beta=0.2, fail="check", kind="arguments")
    assert tuning.commands() == ["check", "train"]


def test_failed_training_resumes_from_its_newest_state(tuning: Tuning) -> None:
    with pytest.raises(EngineError, match="ran out of memory; lower the batch"):
        tuning.train(fail_at=2, kind="no_memory")
    done = tuning.train()
    assert done.resumed_step == 2 and [step.step for step in done.steps] == [1, 2, 3]
    assert tuning.said[-1] == "training 5 parameters on none: 3 steps, resuming from step 2"


def test_states_of_a_training_without_effect_are_set_aside(tuning: Tuning) -> None:
    with pytest.raises(EngineError, match="learnt nothing .*; check learning_rate"):
        tuning.train(fail_at=2, kind="nothing_learned")
    assert (tuning.folder.nothing_learned / "checkpoint-2").is_dir() and not tuning.folder.output.exists()
    assert tuning.train().resumed_step == 0


def test_failed_export_keeps_the_training(tuning: Tuning) -> None:
    with pytest.raises(EngineError, match=r"\(finish\) failed"):
        tuning.train(fail="finish", kind="other")
    assert tuning.train(fail="train", kind="other").num_steps == 3


@pytest.mark.covers("service-25")
@pytest.mark.parametrize(("code", "passed_on"), [(7, 7), (125, 125), (1, 1), (2, 1), (126, 1), (130, 1), (255, 1)])
def test_exit_code_of_the_engine_is_that_of_the_command_unless_it_means_something_else(
    tuning: Tuning, code: int, passed_on: int
) -> None:
    with pytest.raises(EngineError, match=f"failed with code {code}") as caught:
        tuning.train(fail="train", kind="other", code=code)
    assert caught.value.exit_code == passed_on
