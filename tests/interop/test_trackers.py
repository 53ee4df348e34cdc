"""The packages of W&B, MLflow and TensorBoard (`make interop`): a run sends its figures, and they read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from treadle.core.cache_folders import cached_folder
from treadle.core.engines.cache import cache_root

PACKAGES = ("wandb==0.31.0", "mlflow-skinny==3.17.2", "tensorboard==2.21.0")
CHECKOUT = Path(__file__).parents[2]
TREADLE = "from treadle.cli.main import main; main()"
MLFLOW = """
import json
from mlflow.tracking import MlflowClient
client = MlflowClient()
(run,) = client.search_runs([client.get_experiment_by_name("treadle").experiment_id])
histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
steps = {name: [(one.step, one.value) for one in history] for name, history in histories.items()}
print(json.dumps({"name": run.info.run_name, "status": run.info.status, "steps": steps}))
"""
TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1])
read.Reload()
print(json.dumps({name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}))
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    """Return a folder with the packages of the trackers; Treadle's own packages come before those in it."""

    def fill(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *PACKAGES]
        subprocess.run(pip, check=True)

    version = "-".join(one.replace("==", "-") for one in PACKAGES)
    return cached_folder(cache_root() / "tests" / f"{version}-{sys.version_info.major}.{sys.version_info.minor}", fill)


def python(packages: Path, where: Path, environment: Mapping[str, str], code: str, *arguments: str) -> str:
    """Run a program that finds the packages, in a folder and with these variables; return its output."""
    code = f"import sys; sys.path.append({str(packages)!r})\n{code}"
    known = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=where, env={**known, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "gets no figures" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("uri", ["file:{}/mlflow", ""])
def test_trackers_read_what_a_run_sends(packages: Path, tmp_path: Path, uri: str) -> None:
    store = {"MLFLOW_TRACKING_URI": uri.format(tmp_path)} if uri else {}
    site = {"WANDB_DIR": str(tmp_path), "HOME": str(tmp_path), **store}
    run = partial(python, packages, tmp_path, site, TREADLE)
    for place in ("configs/smoke.toml", "configs/smoke"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).symlink_to(CHECKOUT / place)
    run("run", "configs/smoke.toml", "--run", "first", "--set", 'flow.trackers=["wandb", "mlflow", "tensorboard"]')
    run("stage", "1/scores@agent", "--run", "first", "--force")

    told = python(packages, tmp_path, site, TENSORBOARD, str(tmp_path / "outputs/tensorboard/first"))
    board: dict[str, Any] = json.loads(told)
    seen = json.loads(python(packages, tmp_path, {**site, "MLFLOW_ALLOW_FILE_STORE": "true"}, MLFLOW))
    assert (seen["name"], seen["status"]) == ("first", "FINISHED")
    assert set(seen["steps"]) == set(board) >= {"rollouts/agent/num_rollouts", "scores/agent/num_rollouts"}
    assert seen["steps"]["rollouts/agent/num_rollouts"] == [[1, 5.0]] == board["rollouts/agent/num_rollouts"]
    written = b"".join(file.read_bytes() for file in tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert all(name.encode() in written for name in board)
