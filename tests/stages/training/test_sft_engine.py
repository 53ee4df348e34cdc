"""Fine-tuning processes: a failure becomes one error, and an interrupted training resumes. The engine is scripted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.scripted_environment import write_python
from support.runs.processes import Seen, end_family, family, kill_alone, remaining, until
from support.servers.own_clock import HourlyClock
from support.training import scripted_engine

from treadle.core.engines import training, training_engine
from treadle.core.engines.config import Machine
from treadle.core.errors import ConfigError, EngineError
from treadle.sft.config import SftOptions
from treadle.sft.launch import EngineOptions, Listener, Training, TrainingFolder, TrainingStep, fine_tune
from treadle.sft.llamafactory_config import torchrun_arguments

TESTS = Path(__file__).parents[2]
OPTIONS = EngineOptions(variant="cpu", stall_timeout_s=60.0)

PARENT = """
import sys
from pathlib import Path
from treadle.core.engines import training_engine
from treadle.sft import launch
training_engine.python_of = lambda engine, variant: Path(sys.argv[1])
launch.fine_tune(launch.TrainingFolder(Path(sys.argv[2])), "a: 1\\n", launch.EngineOptions(variant="cpu"))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return an interpreter that runs the scripted engine, whatever module it is given."""
    path = tmp_path / "python"
    write_python(path, scripted_engine)
    return path


@pytest.fixture
def folder(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingFolder:
    monkeypatch.setattr(training_engine, "python_of", lambda engine, variant: python)
    (tmp_path / "work").mkdir()
    return TrainingFolder(tmp_path / "work")


def pids(seen: list[Seen]) -> set[int]:
    return {process.pid for process in seen}


def run(folder: TrainingFolder, options: EngineOptions = OPTIONS, **script: Any) -> Training:
    (folder.path / "script.json").write_text(json.dumps(script))
    return fine_tune(folder, "a: 1\n", options)


def test_steps_are_reported_live_and_a_finished_training_is_not_repeated(folder: TrainingFolder) -> None:
    (folder.path / "script.json").write_text("{}")
    steps: list[TrainingStep] = []
    begins: list[tuple[int, int]] = []
    listener = Listener(begin=lambda *begin: begins.append(begin), step=steps.append)
    done = fine_tune(folder, "a: 1\n", OPTIONS, listener, prompt=[1])
    assert begins == [(6, 0)] and [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert done.steps == tuple(steps) and done.num_steps == 6 and done.seconds == 6.5
    assert done.greedy is not None and done.greedy.ids == (1,)
    log = (folder.logs / "train.log").read_text()
    assert str(os.getcwd()) not in log and f" {len(os.sched_getaffinity(0))} " in log
    assert run(folder, at=1, do="die") == done


def test_llamafactory_rejection_is_a_config_error(folder: TrainingFolder) -> None:
    with pytest.raises(ConfigError, match=r"refuses the configuration of sft: unknown key 'lerning_rate'"):
        run(folder, refuse="unknown key 'lerning_rate'")
    assert not folder.rows.exists()


def test_model_missing_from_the_hub_fails_in_one_line(folder: TrainingFolder) -> None:
    said = r"^sft\.model cannot be fetched from the model hub \(org/name: gone\); check its name.*set a local folder"
    with pytest.raises(EngineError, match=said) as caught:
        run(folder, refuse="org/name: gone", kind="no_model")
    assert "\n" not in str(caught.value)


def test_commands_for_further_nodes_are_printed_before_waiting_for_them(
    folder: TrainingFolder, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(variant="cuda", num_devices=2, num_nodes=3)
    arguments = torchrun_arguments(SftOptions(num_nodes=3, main_address="first"), machine)
    options = EngineOptions(variant="cpu", stall_timeout_s=60.0, num_nodes=3, torchrun=tuple(arguments))
    (folder.path / "script.json").write_text("{}")
    told: list[str] = []
    fine_tune(folder, "a: 1\n", options, Listener(begin=lambda *_: told.extend(caplog.messages)))
    second, third = folder.nodes.read_text().splitlines()
    (message,) = (text for text in told if "further node(s)" in text)
    assert second in message and str(folder.nodes) in message
    assert "--node_rank=1" in second and "--node_rank=2" in third and "PYTHONPATH=" in second
    assert "--master_addr=first" in third and third.endswith(f"-m treadle.sft.engine train {folder.path}/train.json")
    shutil.rmtree(folder.output)
    done = subprocess.run(["sh", "-c", second], capture_output=True, text=True, env={}, check=False)
    assert done.returncode == 0 and "scripted engine: train" in done.stdout, done.stderr


def test_rejected_config_is_checked_again(folder: TrainingFolder) -> None:
    (folder.path / "script.json").write_text(json.dumps({"at": 1, "do": "other"}))
    with pytest.raises(EngineError, match="other it is"):
        fine_tune(folder, "a: 1\n", OPTIONS)
    (folder.path / "script.json").write_text(json.dumps({"refuse": "no"}))
    for _ in range(2):
        with pytest.raises(ConfigError, match="refuses the configuration of sft: no"):
            fine_tune(folder, "a: 2\n", OPTIONS)


def test_prepare_findings_are_reported_before_training_and_pin_later_processes(folder: TrainingFolder) -> None:
    def refuse(prepared: Mapping[str, Any]) -> None:
        raise ConfigError(prepared["tokenizer_digest"])

    (folder.path / "script.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(ConfigError, match="d1"):
            fine_tune(folder, "a: 1\n", OPTIONS, Listener(prepared=refuse))
    assert not (folder.logs / "train.log").exists()
    done = run(folder)
    assert (done.revision, done.tokenizer_digest) == ("c0ffee", "d1")
    assert all("revision c0ffee" in (folder.logs / f"{name}.log").read_text() for name in ("train", "finish"))


def test_missing_greedy_sample_leaves_the_training_resumable(folder: TrainingFolder) -> None:
    (folder.path / "script.json").write_text(json.dumps({"finish": "no memory"}))
    with pytest.raises(
        EngineError, match="ran out of memory; the training is saved, only its model must still be written"
    ):
        fine_tune(folder, "a: 1\n", OPTIONS, prompt=[1])
    assert folder.model.is_dir() and run(folder, at=1, do="die").greedy is None, "without a prompt nothing is left"
    (folder.path / "script.json").write_text(json.dumps({"at": 1, "do": "die"}))
    done = fine_tune(folder, "a: 1\n", OPTIONS, prompt=[1])
    assert done.greedy is not None and done.greedy.ids == (1,)


@pytest.mark.parametrize(
    ("given", "num_devices", "seen"),
    [(None, 2, "0,1"), ("3, 5,7", 2, "3,5"), ("3,5", 1, "3"), ("GPU-a,GPU-b", 2, None)],
)
def test_processes_see_participating_gpus_and_prepare_runs_as_a_torchrun_process(
    folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch, given: str | None, num_devices: int, seen: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    arguments = torchrun_arguments(SftOptions(), Machine(variant="cuda", num_devices=num_devices))
    torchrun = tuple(arguments) if num_devices > 1 else None
    run(folder, EngineOptions(variant="cuda", stall_timeout_s=60.0, torchrun=torchrun, num_devices=num_devices))
    visible = f"CUDA_VISIBLE_DEVICES={seen or given} "
    prepared, trained = ((folder.logs / f"{name}.log").read_text() for name in ("prepare", "train"))
    assert visible in prepared and visible in trained
    assert ("RANK=0 WORLD_SIZE=1" in prepared) == (torchrun is not None) and "RANK=None" in trained


def test_training_sees_the_gpus_named_in_its_config(folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    run(folder, EngineOptions(variant="cuda", stall_timeout_s=60.0, devices=(3, 1)))
    assert "CUDA_VISIBLE_DEVICES=7 " in (folder.logs / "train.log").read_text()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"at": 3, "do": "die"}, r"killed \(signal 9\).*memory(.|\n)*scripted engine: train"),
        ({"at": 3, "do": "no memory"}, r"ran out of memory; lower per_device_batch_size(.|\n)*Tried to allocate"),
        ({"at": 3, "do": "no_memory"}, "ran out of memory"),
        ({"at": 3, "do": "diverged"}, r"diverged \(Error: diverged it is\); lower learning_rate"),
        ({"at": 3, "do": "nothing_learned"}, "learnt nothing"),
        ({"at": 3, "do": "other"}, r"failed with code 1 \(Error: other it is\)"),
        ({"at": 1, "do": "stop early"}, "took no step"),
        ({"at": 3, "do": "stop early"}, "took no step"),
        ({"at": 3, "do": "stop after 2"}, "ended after 2 of 6 steps"),
        ({"quiet": 6}, "no loss was logged in 6 steps"),
        ({"loss": 0.25}, r"the loss was 0.25 in all 6 steps"),
    ],
)
def test_failed_training_raises_one_error_with_its_log(
    folder: TrainingFolder, script: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        run(folder, **script)
    assert "\x1b" not in str(caught.value) and str(folder.logs / "train.log") in str(caught.value)
    assert not folder.model.exists() and not folder.trained.exists()


def hangs(folder: TrainingFolder) -> bool:
    log = folder.logs / "train.log"
    return log.exists() and "still here" in log.read_text()


def test_silent_training_is_killed_with_all_its_processes(
    folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SteadyClock", HourlyClock(lambda: hangs(folder)))
    before = family(os.getpid())
    with pytest.raises(EngineError, match=r"hangs: it sent no events for 5000 s(.|\n)*still here"):
        run(folder, EngineOptions(variant="cpu", stall_timeout_s=5000.0), at=3, do="hang")
    assert pids(family(os.getpid())) <= pids(before)


def test_killed_training_resumes_from_the_newest_complete_state(folder: TrainingFolder) -> None:
    with pytest.raises(EngineError, match="signal 9"):
        run(folder, at=5, do="die", torn=4)
    assert (folder.output / "checkpoint-4").is_dir()
    done = run(folder, at=5, do="die", once=True)
    assert done.resumed_step == 2
    assert [step.step for step in done.steps] == [1, 2, 3, 4, 5, 6]
    assert done.seconds == 6.5, "the two steps that were done twice count once"


def test_training_that_learnt_nothing_is_not_resumed(folder: TrainingFolder) -> None:
    with pytest.raises(EngineError, match="learnt nothing"):
        run(folder, at=5, do="nothing_learned")
    assert (folder.nothing_learned / "checkpoint-4" / "treadle-complete").is_file(), "the states are kept for a look"
    assert run(folder).resumed_step == 0


def test_ctrl_c_ends_the_training_and_the_next_call_resumes(folder: TrainingFolder) -> None:
    (folder.path / "script.json").write_text(json.dumps({"at": 4, "do": "hang", "once": True}))

    def interrupt(step: TrainingStep) -> None:
        if step.step == 3:
            raise KeyboardInterrupt

    before = family(os.getpid())
    with pytest.raises(KeyboardInterrupt):
        fine_tune(folder, "a: 1\n", OPTIONS, Listener(step=interrupt))
    assert pids(family(os.getpid())) <= pids(before)
    assert fine_tune(folder, "a: 1\n", OPTIONS).resumed_step == 2


def test_killing_treadle_leaves_no_training_process(folder: TrainingFolder, python: Path) -> None:
    (folder.path / "script.json").write_text(json.dumps({"at": 3, "do": "hang", "once": True}))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(python), str(folder.path)])
    try:
        until(lambda: hangs(folder), "the training hangs")
        orphans = kill_alone(parent)
        assert orphans is not None and len(orphans) >= 3
        until(lambda: not remaining(orphans), "the training has ended with Treadle", limit_s=10.0)
    finally:
        end_family(parent)
    assert fine_tune(folder, "a: 1\n", OPTIONS).resumed_step == 2


def test_sigterm_reaches_the_training(folder: TrainingFolder, python: Path) -> None:
    (folder.path / "script.json").write_text(json.dumps({"at": 3, "do": "hang"}))
    stop_on_term = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    parent = subprocess.Popen([sys.executable, "-c", stop_on_term + PARENT, str(python), str(folder.path)])
    try:
        until(lambda: hangs(folder), "the training hangs")
        members = family(parent.pid)
        parent.send_signal(signal.SIGTERM)
        assert parent.wait() == 3 and not remaining(members)
    finally:
        end_family(parent)
