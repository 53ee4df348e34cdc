"""Rollouts with hints in real TRL: what is in the batch, and the loss of one batch computed by hand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.training import trl_jobs

from treadle.core.engines.environments import engine_environ, python_of

TESTS = Path(__file__).parents[2]
CHECKS = TESTS / "support" / "experience" / "hint_checks.py"


@pytest.fixture(scope="module")
def checks(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the engine reports of hints."""
    job = tmp_path_factory.mktemp("hints") / "job.json"
    job.write_text(json.dumps({"plan": json.loads(trl_jobs.make_plan().to_json())}))
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"})
    done = subprocess.run(
        [str(python_of("trl", "cpu")), str(CHECKS), str(policy), str(job)],
        env={**environ, "PYTHONPATH": os.pathsep.join([environ["PYTHONPATH"], str(TESTS)])},
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.covers("service-26")
def test_loss_of_a_batch_is_the_one_computed_by_hand(checks: dict[str, Any]) -> None:
    # L = max(-A r, -A clip(r, 0.8, 1 + high)), and for A < 0 at most -A 3; high is 0.6 if a hint was cut, else 0.28.
    hinted = [-1.5, -0.7, -1.28, -0.7, -1.6, -1.28, 3.0, 0.8, 3.0, 0.8, 1.5, 1.5]
    plain = [-1.28, -0.7, -1.28, -0.7, -1.28, -1.28, 3.0, 0.8, 3.0, 0.8, 1.5, 1.5]
    golden = checks["golden"]
    assert golden["hinted"] == pytest.approx(sum(hinted) / 12, abs=1e-6)
    assert golden["plain"] == pytest.approx(sum(plain) / 12, abs=1e-6)
    assert golden["hinted_clipped"] == pytest.approx(3 / 12) and golden["plain_clipped"] == pytest.approx(4 / 12)
    assert golden["hinted_ranges"] == golden["plain_ranges"] == [0.2, 0.28], "later batches have their own"


@pytest.mark.covers("service-26")
def test_half_of_each_group_sees_the_hint_and_only_kept_ones_are_in_the_batch(checks: dict[str, Any]) -> None:
    rows, groups = checks["batch"]["rows"], checks["batch"]["groups"]
    assert len(rows) == 16
    for task, made in groups.items():
        own = [row for row in rows if row["task"] == task]
        assert [row["ids"] for row in own] == [one["ids"] for one in made], "sampled ids are untouched"
        hinted = [one["hinted"] for one in made]
        assert sum(hinted) == 4
        kept = task == "key-1"
        assert [row["shows"] for row in own] == [kept and saw for saw in hinted]
        assert [row["hint_cut"] for row in own] == [not kept and saw for saw in hinted]


@pytest.mark.covers("service-26")
def test_log_probabilities_are_those_after_the_prompt_that_is_trained_on(checks: dict[str, Any]) -> None:
    assert max(row["logprob_error"] for row in checks["batch"]["rows"]) < 1e-4
