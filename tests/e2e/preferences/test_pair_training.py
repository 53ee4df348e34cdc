"""Training on preferences by real TRL: golden losses, masks, killed and resumed, adapters, refusals."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.preferences import pair_jobs
from support.runs.processes import end_family, kill_alone, remaining, until

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.training import EngineOptions
from treadle.core.errors import ConfigError, EngineError
from treadle.rl.dpo.engine import ENGINE
from treadle.rl.dpo.launch import DpoFolder, PairTraining, train_on_pairs
from treadle.rl.training.checkpoint_checks import check_exported

TESTS = Path(__file__).parents[2]
CHECKS = TESTS / "support" / "preferences" / "pair_trainer_checks.py"
CPU = EngineOptions(variant="cpu")


@pytest.fixture(scope="session")
def checks(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the trainer computes on given log-probabilities."""
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"})
    found = subprocess.run(
        [str(python_of("trl", "cpu")), str(CHECKS), str(policy), str(tmp_path_factory.mktemp("checks"))],
        env={**environ, "PYTHONPATH": os.pathsep.join([environ["PYTHONPATH"], str(TESTS)])},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert not found.returncode, found.stderr[-4000:]
    made: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return made


@pytest.mark.covers("sweet-15")
@pytest.mark.parametrize(
    ("aggregate", "loss", "margin"),
    [("token_mean", 0.681878, 0.226667), ("turn_sum", 0.666025, 0.55), ("sum", 0.634946, 1.2)],
)
def test_trainer_gives_the_losses_of_the_formulas(
    checks: dict[str, Any], aggregate: str, loss: float, margin: float
) -> None:
    found = checks["by_aggregate"][aggregate]
    assert found["loss"] == pytest.approx(loss, abs=1e-6) and found["margin"] == pytest.approx(margin, abs=1e-5)
    assert (found["accuracy"], found["num_pairs"]) == (1.0, 1)
    assert checks["by_aggregate"][f"{aggregate} equal"]["loss"] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.covers("sweet-26")
def test_likelihood_of_the_chosen_side_covers_its_tokens_alone(checks: dict[str, Any]) -> None:
    found = checks["likelihood"]
    assert found["plain"] == pytest.approx(0.598139, abs=1e-6)
    assert found["nll"] == pytest.approx(0.603139, abs=1e-6) and found["long"] == pytest.approx(0.603139, abs=1e-6)
    mean = -(-2.0 * 6 + 1.6) / 6
    assert found["turn_sum"] == pytest.approx(0.666025 + 0.01 * mean, abs=1e-6)


def test_sides_of_different_lengths_share_a_batch(checks: dict[str, Any]) -> None:
    def mean(first: float, margin: float) -> float:
        return (first + math.log1p(math.exp(-0.1 * margin))) / 2

    found = checks["batch_of_two"]
    assert found["token_mean"]["loss"] == pytest.approx(mean(0.681878, -0.02), abs=1e-6)
    assert found["turn_sum"]["loss"] == pytest.approx(mean(0.666025, -0.04), abs=1e-6)
    assert all((one["accuracy"], one["num_pairs"], one["num_right"]) == (0.5, 2, 1) for one in found.values())


@pytest.mark.covers("sweet-29")
def test_length_normalised_loss_has_the_gradient_of_a_sigmoid(checks: dict[str, Any]) -> None:
    below, at, above = checks["slope"]
    assert at == pytest.approx(0.692148, abs=1e-6)
    assert (above - below) / 0.002 == pytest.approx(-0.04995, abs=1e-3)


@pytest.mark.covers("sweet-17")
def test_only_sampled_ids_have_a_gradient(checks: dict[str, Any]) -> None:
    for moved, expected in checks["gradients"].values():
        assert moved == expected


@pytest.mark.covers("sweet-27")
def test_learning_rate_of_the_preset_follows_the_published_schedule(checks: dict[str, Any]) -> None:
    rates = checks["schedule"]
    assert rates == pytest.approx({"0": 0.0, "15": 1e-7, "30": 2e-7, "515": 1.1e-7, "1000": 2e-8}, abs=1e-10)


@pytest.fixture
def folder(tmp_path: Path, policy: Path) -> DpoFolder:
    made = DpoFolder(tmp_path / "training")
    pair_jobs.write_pairs(made.parquet, ChatTokenizer.load(policy))
    return made


def train(folder: DpoFolder, plan: dict[str, Any]) -> PairTraining:
    return train_on_pairs(folder, plan, CPU, ENGINE, prompt=[1, 2, 3])


def test_killed_training_resumes_from_its_last_state_and_learns(folder: DpoFolder, policy: Path) -> None:
    plan = pair_jobs.make_plan(folder, policy)
    parent = subprocess.Popen([sys.executable, "-c", pair_jobs.PARENT, str(folder.path)])
    try:
        saved = '"event": "saved"'
        until(lambda: parent.poll() is not None or saved in text(folder.events), "a state is saved", limit_s=400)
        orphans = kill_alone(parent)
        until(lambda: not remaining(orphans), "the training has ended with Treadle", limit_s=10.0)
    finally:
        end_family(parent)
    assert not folder.trained.exists(), "it was over before it was killed"

    done = train(folder, plan)
    assert done.resumed_step >= 1 and [step.step for step in done.steps] == list(range(1, 10))
    assert [one.step for one in done.validations] == [3, 6, 9]
    assert all(one.num_pairs == 4 for one in done.validations) and done.validations[-1].num_right == 4
    assert done.steps[-1].loss < done.steps[0].loss and done.steps[-1].accuracy == 1.0
    assert done.live_greedy is not None and done.greedy is not None
    check_exported(done, policy, ChatTokenizer.load(policy), moved_to=folder.refused, address="1/dpo@critic")
    assert train(folder, plan).steps == done.steps, "a finished training is not repeated"


def test_adapters_are_trained_against_the_model_without_them(folder: DpoFolder, policy: Path) -> None:
    plan = pair_jobs.make_plan(folder, policy, aggregate="token_mean", finetuning_type="lora", learning_rate=1e-2)
    done = train(folder, plan)
    assert done.steps[0].loss == pytest.approx(math.log(2), abs=1e-4) and done.steps[-1].loss < done.steps[0].loss
    check_exported(done, policy, ChatTokenizer.load(policy), moved_to=folder.refused, address="1/dpo@critic")


def test_unknown_key_of_trl_is_refused_before_training(folder: DpoFolder, policy: Path) -> None:
    plan = pair_jobs.make_plan(folder, policy, extra={"lerning_rate": 1.0})
    with pytest.raises(ConfigError, match="TRL refuses the configuration of dpo: unknown key 'lerning_rate'"):
        train(folder, plan)


def test_training_without_gradient_is_an_error(folder: DpoFolder, policy: Path) -> None:
    plan = pair_jobs.make_plan(folder, policy, learning_rate=1e-30, num_train_epochs=1.0)
    with pytest.raises(EngineError, match="learnt nothing"):
        train(folder, plan)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
