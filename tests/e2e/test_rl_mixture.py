"""RL by real TRL on two kinds of environments with shares: killed and resumed, each step has exactly its rows."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import orjson
import pytest
from support.runs.processes import end_family, kill_alone, remaining, until
from support.tables import rl_mixture

from treadle.core.engines.training import EngineOptions
from treadle.rl.training.launch import RlFolder, reinforce

PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.tables import rl_mixture
from treadle.core.engines.training import EngineOptions
from treadle.rl.training.launch import RlFolder, reinforce
folder, policy = Path(sys.argv[1]), Path(sys.argv[2])
settings = rl_mixture.settings(folder.parent)
job = rl_mixture.job(policy, settings)
reinforce(RlFolder(folder), rl_mixture.make_plan(settings), job, EngineOptions(variant="cpu"))
"""


@pytest.mark.covers("pareto-32")
def test_mixture_is_killed_and_resumed_with_the_planned_rows_in_each_step(
    tmp_path: Path, trl_environment: Path
) -> None:
    policy, folder = tmp_path / "policy", RlFolder(tmp_path / "training")
    policy.mkdir()
    rl_mixture.write_policy(policy)
    rl_mixture.write_files(folder)
    tests = str(Path(__file__).parents[1])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder.path), str(policy), tests])
    try:
        until(lambda: parent.poll() is not None or saved(folder) >= 2, "two states are saved", limit_s=400)
        orphans = kill_alone(parent)
        until(lambda: not remaining(orphans), "the training has ended with Treadle", limit_s=10.0)
    finally:
        end_family(parent)
    assert not folder.trained.exists(), "it was over before it was killed"

    settings = rl_mixture.settings(tmp_path)
    plan = rl_mixture.make_plan(settings)
    done = reinforce(folder, plan, rl_mixture.job(policy, settings), EngineOptions(variant="cpu"))
    assert done.resumed_step >= 2 and done.num_steps == plan.num_steps == 6

    given = rl_mixture.rows()
    planned = plan.rows_of_steps([row["environment"] for row in given])
    dumped = [
        orjson.loads(line) for path in sorted(folder.rollouts.iterdir()) for line in path.read_bytes().split(b"\n")[:-1]
    ]
    for step, rows in enumerate(planned, 1):
        groups = [row for row in dumped if row["step"] == step and row["session"] == 0]
        assert [row["question_key"] for row in groups] == [given[index]["question_key"] for index in rows]
        assert [row["environment"] for row in groups] == [given[index]["environment"] for index in rows]
    counts = Counter(row["environment"] for row in dumped)
    assert counts == {"default": 12, "digit": 36}, "a quarter and three quarters of 12 groups of four"
    assert {row["prediction"] for row in dumped if row["environment"] == "default"} != {""}
    digits = [row for row in dumped if row["environment"] == "digit"]
    assert {row["reward"] for row in digits} == {0.0, 1000.0} and "secret" not in orjson.dumps(dumped).decode()

    for step in done.steps:
        own = step.environments or {}
        expected = Counter(given[index]["environment"] for index in planned[step.step - 1])
        assert {name: figures.num_rollouts // 4 for name, figures in own.items()} == expected
    assert [made.step for made in done.validations] == [1, 2, 3, 4, 5, 6]
    assert all(made.by_environment.keys() == {"default", "digit"} for made in done.validations)
    assert list(itertools.chain(*planned)) != list(range(12))


def saved(folder: RlFolder) -> int:
    """Return the number of states that were saved so far."""
    return folder.events.read_text().count('"event": "saved"') if folder.events.exists() else 0
