"""Write figures to each kind of tracker, through its own package if it needs one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from treadle.core.runs.run import Run
from treadle.core.store.roots import is_object_store
from treadle.tasks.trackers.figures import TrackedFigures
from treadle.tasks.trackers.tensorboard_files import write_events

PROJECT = "treadle"
"""Project of Weights & Biases, and experiment of MLflow, unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME name one."""


def write_tensorboard(run: Run, figures: Sequence[TrackedFigures]) -> None:
    """Write event files to `tensorboard/<run>` in the root, or in TENSORBOARD_LOGGING_DIR."""
    for one in figures:
        write_events(tensorboard_folder(run) / run.run_id, one.values, one.step)


def tensorboard_folder(run: Run) -> Path:
    """Return the folder for `tensorboard --logdir`; for a root in an object store, it is in the working directory."""
    if chosen := os.environ.get("TENSORBOARD_LOGGING_DIR"):
        return Path(chosen)
    root = run.storage.location()
    return Path("tensorboard") if is_object_store(root) else Path(root) / "tensorboard"


def write_wandb(run: Run, figures: Sequence[TrackedFigures]) -> None:
    """Add the figures to the W&B run of this run; offline if no key is found and WANDB_MODE is not set."""
    import wandb  # type: ignore[import-not-found, unused-ignore]

    with wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=run_key(run),
        name=run.run_id,
        resume="allow",
        mode=os.environ.get("WANDB_MODE") or (None if _has_wandb_key() else "offline"),
        settings=wandb.Settings(silent=True, console="off"),
    ) as opened:
        # Rounds, phases and iterations are no order in which a run proceeds, as W&B's own steps are.
        opened.define_metric("*", step_metric="step")
        for one in figures:
            opened.log({**one.values, "step": one.step})


def _has_wandb_key() -> bool:
    """Return whether W&B finds a key in the environment or in netrc; without one, it would ask for it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


def write_mlflow(run: Run, figures: Sequence[TrackedFigures]) -> None:
    """Add the figures to the MLflow run of this run, at MLFLOW_TRACKING_URI."""
    # MLflow 3 refuses folders unless told otherwise; a folder in MLFLOW_TRACKING_URI is there on purpose.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient  # type: ignore[import-not-found, unused-ignore]

    client, name, key = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT), run_key(run)
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known is not None else client.create_experiment(name)
    found = client.search_runs([experiment], f"tags.`treadle.key` = '{key}'", max_results=1)
    opened = found[0] if found else client.create_run(experiment, run_name=run.run_id, tags={"treadle.key": key})
    for one in figures:
        for figure, value in one.values.items():
            client.log_metric(opened.info.run_id, figure, value, step=one.step)
    client.set_terminated(opened.info.run_id)


def run_key(run: Run) -> str:
    """Return the id of the run in trackers: runs of the same name in different roots differ."""
    identity = f"{run.storage.location()}\n{run.run_id}\n{run.info.created_at}"
    return f"treadle-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


TRACKERS: dict[str, tuple[Callable[[Run, Sequence[TrackedFigures]], None], str]] = {
    "wandb": (write_wandb, "wandb"),
    "mlflow": (write_mlflow, "mlflow"),
    "tensorboard": (write_tensorboard, ""),
}
"""Name in `flow.trackers` -> function that writes figures, and the package that it needs (empty if none)."""
