"""A second iteration with real engines: vLLM serves the first RL checkpoint of TRL as the policy of
`2/pools`, and LLaMA-Factory starts from it in `2/sft`.

It extends a copy of the demo's run as the guide to iterations says.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.rollouts.small_demo import NUM_OWN_QUESTIONS, NUM_ROWS, finish, kill_when

from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.tables import MODEL_FOLDER
from treadle.rl.training.checkpoint_checks import tensors

pytestmark = pytest.mark.sweep

MADE = ("2/pools", "2/sft_rows", "2/sft")
"""Instances of the second iteration that are made here; what would follow is what tests of the demo show."""
LEFT_OUT = ("2/rollouts@phase-1", "2/rollouts@tuned")


@dataclass(frozen=True, slots=True)
class SecondTurn:
    """A demo that was made longer, killed while the second iteration trained, and run again."""

    run: Run
    before: dict[str, bytes]
    """Files of the records and attempts of the first iteration as they were when only that was there."""
    killed: str
    """What was reported until it was killed."""
    err: str
    """What was reported when it was run again."""

    def record(self, address: str) -> StageRecord:
        """Return the result of an instance."""
        found = self.run.record(Address.parse(address))
        assert found is not None, address
        return found

    def model(self, address: str) -> Path:
        """Folder of the model that an instance made."""
        return self.run.rows(self.record(address).outputs["checkpoint"]).folder(MODEL_FOLDER)


def paid(run: Run) -> dict[str, bytes]:
    """Return the files that show how often instances of the first iteration ran, and their results: name -> content."""
    folder = Path(run.storage.directory(run.key("")))
    found = [path for kind in ("records", "attempts") for path in (folder / kind / "1").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def turn(demo_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecondTurn]:
    """Two iterations, the first of which is the demo of the other tests."""
    folder = tmp_path_factory.mktemp("longer")
    root = shutil.copytree(demo_run.storage.directory(""), folder / "root")
    run = Run.open(root, "demo")
    before = paid(run)
    command = ("run", "--run", "demo", "--root", str(root), "--set", "flow.iterations=2")
    command += tuple(part for address in LEFT_OUT for part in ("--without", address))
    said = folder / "first"
    trains = re.compile(r"2/sft: [1-5] of 6")
    kill_when(lambda: bool(trains.search(said.with_suffix(".err").read_text())), "2/sft trains", command, said)
    _, err = finish(command, folder / "second", limit_s=900)
    yield SecondTurn(run, before, said.with_suffix(".err").read_text(), err)
    shutil.rmtree(root)


def test_second_iteration_samples_pools_from_the_first_rl_checkpoint(turn: SecondTurn) -> None:
    pools, policy = turn.record("2/pools"), turn.record("1/rl@phase-1").outputs["checkpoint"]
    assert [(ref.address, ref.artifact) for ref in pools.inputs["checkpoint"]] == [("1/rl@phase-1", policy)]
    assert {kind for kind, _ in tensors(turn.model("1/rl@phase-1")).values()} == {"F32"}, "as TRL wrote it"
    assert "smollm2-135m-instruct gets the weights of 1/rl@phase-1" in turn.killed
    (started,) = [line for line in turn.killed.splitlines() if line.startswith("starting vllm server")]
    log = Path(started.rpartition("log: ")[2]).read_text()
    assert f"'model': '{turn.model('1/rl@phase-1')}'" in log, "this is what vLLM loaded"
    assert "dtype=torch.float32" in log, "and not rounded"
    rows = list(turn.run.rows(pools.outputs["pools"]).rows())
    assert len({row["question_key"] for row in rows}) == NUM_OWN_QUESTIONS


def test_second_iteration_sft_starts_from_the_first_rl_checkpoint(turn: SecondTurn) -> None:
    sft, policy = turn.record("2/sft"), turn.record("1/rl@phase-1").outputs["checkpoint"]
    assert [(ref.address, ref.artifact) for ref in sft.inputs["checkpoint"]] == [("1/rl@phase-1", policy)]
    (row,) = turn.run.rows(sft.outputs["checkpoint"]).rows()
    assert (row["base_model"], row["base_digest"]) == ("1/rl@phase-1", policy.digest)
    assert 0 < row["num_rows"] <= NUM_ROWS
    first = turn.record("1/sft").metrics
    assert row["first_loss"] < 0.5 * first["first_loss"], "it begins with what the first turn has learnt"
    made = [turn.record(address).outputs["checkpoint"].digest for address in ("1/sft", "1/rl@phase-1", "2/sft")]
    assert len(set(made)) == len(made)


def test_killed_second_iteration_does_not_repeat_the_first(turn: SecondTurn) -> None:
    assert paid(turn.run) == turn.before
    firsts = [line for line in turn.err.splitlines() if line.startswith("1/")]
    assert len(firsts) == 17 and all("(unchanged, reused)" in line for line in firsts)
    for address in MADE[:2]:
        assert f"{address}: " in turn.killed
        assert any(line.startswith(f"{address}: ") and "(unchanged, reused)" in line for line in turn.err.splitlines())
    assert "starting vllm" not in turn.err
    assert turn.record("2/rollouts@base").reused_from == "1/rollouts@base"
    attempts = {address: len(turn.run.attempts(Address.parse(address))) for address in MADE}
    assert attempts == {"2/pools": 1, "2/sft_rows": 1, "2/sft": 2}
