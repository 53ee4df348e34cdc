"""Trajectories of several contexts on several devices: real TRL on two processes against one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.training import trl_jobs

from treadle.core.engines.environments import engine_environ, python_of

PROGRAM = Path(__file__).parents[1] / "support" / "devices" / "step_gradient.py"


@pytest.mark.sweep
def test_two_devices_take_the_update_of_one_with_several_samples_per_trajectory(policy: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"plan": json.loads(trl_jobs.make_plan().to_json())}))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    (one,), two = facts([], policy, job, tmp_path / "one"), facts(launcher, policy, job, tmp_path / "two")
    assert [made["world"] for made in two] == [2, 2]
    # Both devices have as many rows, of which some have no weight: each takes part in every backward pass.
    assert two[0]["rows"] == two[1]["rows"] and sum(one["rows"]) > 16
    assert two[0]["gradient"] == two[1]["gradient"]
    largest = max(map(abs, one["gradient"]))
    assert largest > 0.0
    pairs = zip(one["gradient"], two[0]["gradient"], strict=True)
    assert max(abs(left - right) for left, right in pairs) < 1e-5 * largest
    assert one["reward"] == pytest.approx(two[0]["reward"]), "each rollout counts once"


def facts(launcher: list[str], policy: Path, job: Path, out: Path) -> list[dict[str, Any]]:
    """Return what each process of a run found."""
    out.mkdir()
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"})
    environ |= {"OMP_NUM_THREADS": "1"}
    tests = str(Path(__file__).parents[1])
    command = [str(python_of("trl", "cpu")), *launcher, str(PROGRAM), str(policy), str(job), str(out)]
    path = os.pathsep.join([environ["PYTHONPATH"], tests])
    subprocess.run(command, env={**environ, "PYTHONPATH": path}, cwd="/", check=True)
    return [json.loads(path.read_text()) for path in sorted(out.iterdir())]
