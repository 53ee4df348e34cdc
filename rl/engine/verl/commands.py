"""Commands of a training with verl: check the plan, train, build the model of a state. See `treadle.rl.engine`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.core.engines.errors import NothingLearned
from treadle.core.engines.events import EventFile
from treadle.core.engines.weights.change import had_no_gradient
from treadle.core.errors import EngineError
from treadle.rl.engine.errors import BadPlan
from treadle.rl.engine.rows import job_environments, plan_of
from treadle.rl.engine.scorer import require_algebra
from treadle.rl.engine.verl.folder import VerlFolder
from treadle.rl.engine.verl.metrics_follower import Follower
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.config import METRICS_VARIABLE, VerlFiles, loop_yaml, override_lines, verl_overrides
from treadle.rl.verl.data import write_verl_rows, write_verl_steps

_PACKAGES = ("verl", "ray", "torch", "transformers", "tensordict", "TransferQueue", "tokenizers")
_RAY_PORT = 6379
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1"}
"""Environment variables that turn off the usage reports of Ray and vLLM."""
_POLL_S = 1.0
_GRACE_S = 30.0
"""Seconds that Ray gets to end its workers; the supervisor of this process kills the rest."""


def check(job: dict[str, Any], events: EventFile) -> None:
    """Compose verl's configuration, compare the environments and count the rows; write the event `prepared`."""
    from treadle.rl.engine.verl.compose import compose_config

    plan = plan_of(job)
    folder = VerlFolder.of_job(job)
    job_environments(job)
    require_algebra(plan)
    config = compose_config(override_lines(verl_overrides(plan, folder.files(job))))
    write_rows(job, plan, folder)
    _require_all_rows(config, job, plan, folder.files(job))
    events.write("prepared", versions={name: version(name) for name in _PACKAGES})


def train(job: dict[str, Any], events: EventFile) -> None:
    """Train to the end of the plan, from the state in the job if it names one."""
    from treadle.rl.engine.verl.model_folder import check_state, count_trained

    if job["resume"]:
        check_state(Path(job["resume"]))
    plan, folder = plan_of(job), VerlFolder.of_job(job)
    overrides = override_lines(verl_overrides(plan, folder.files(job)))
    prepare(job, plan, folder, overrides)
    follower = Follower(plan, folder, Path(job["output"]), Path(job["rollouts"]), events, resumed_step(job))
    machine = plan.machine
    events.write(
        "begin",
        num_steps=plan.num_steps,
        resumed_step=follower.last_step,
        num_trained_parameters=count_trained(Path(job["model"]), plan),
        device=f"{machine.num_processes} GPUs" + (f" of {machine.num_nodes} nodes" if machine.num_nodes > 1 else ""),
    )
    _follow(_command_line(overrides), folder.files(job).metrics, follower)
    if follower.last_step < plan.num_steps:
        raise _failure(follower, f"verl ended after {follower.last_step:,} of {plan.num_steps:,} steps")
    if had_no_gradient(events.path):
        raise NothingLearned(f"no step had a gradient, of {plan.num_steps:,} steps")
    events.write("end", step=follower.last_step, epoch=follower.last_step / max(1, plan.steps_per_epoch))


def finish(job: dict[str, Any], events: EventFile) -> None:
    """Build the model of a state; write the event `greedy`."""
    from treadle.rl.engine.verl.model_folder import finish_model

    finish_model(job, plan_of(job), events)


def prepare(job: Mapping[str, Any], plan: RlPlan, folder: VerlFolder, overrides: list[str]) -> None:
    """Write the files that verl reads (rows, the agent loop's YAML, the job), and a script that trains on a cluster."""
    files = folder.files(job)
    folder.path.mkdir(parents=True, exist_ok=True)
    # A killed attempt may have left groups of its last step, which would be counted again when the step is repeated.
    shutil.rmtree(folder.groups, ignore_errors=True)
    for path in (files.metrics, folder.environment_failure):
        path.unlink(missing_ok=True)
    write_rows(job, plan, folder)
    files.job.write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
    files.loop.write_text(loop_yaml(files.job), encoding="utf-8")
    (folder.path / "cluster.sh").write_text(cluster_script(plan, sys.executable, overrides), encoding="utf-8")


def write_rows(job: Mapping[str, Any], plan: RlPlan, folder: VerlFolder) -> None:
    """Write rows and held-out questions in verl's schema; with shares, the rows of each step in turn."""
    files, rows = folder.files(job), Path(job["rows"])
    environments = job_environments(job)
    if plan.options.shares:
        names = pq.read_table(rows, columns=["environment"], use_threads=False)[0].to_pylist()
        write_verl_steps(rows, files.rows, environments, plan.rows_of_steps(names), phase=plan.phase)
    else:
        write_verl_rows(rows, files.rows, environments, phase=plan.phase)
    # verl requires validation rows even if it never validates.
    held_out, only_first = (Path(job["validation"]), False) if job["validation"] else (rows, True)
    write_verl_rows(held_out, files.validation, environments, split="valid", phase=plan.phase, only_first=only_first)


def _require_all_rows(config: Any, job: Mapping[str, Any], plan: RlPlan, files: VerlFiles) -> None:
    """Raise BadPlan if verl would drop rows, because it would then end before the plan's last step."""
    from treadle.rl.engine.verl.compose import count_kept_rows

    num_rows = plan.num_steps * plan.options.prompts_per_step if plan.options.shares else plan.num_rows
    wanted = [("rows", files.rows, num_rows)]
    if job["validation"]:
        wanted.append(("validation questions", files.validation, plan.num_validation_rows))
    for what, path, number in wanted:
        if (kept := count_kept_rows(config, path, files.model)) != number:
            raise BadPlan(
                f"verl keeps {kept:,} of {number:,} {what}: it counts more tokens in the other prompts than "
                f"rl.max_prompt_tokens = {plan.options.max_prompt_tokens}; raise it"
            )


def resumed_step(job: Mapping[str, Any]) -> int:
    """Return the step of the state from which training resumes; 0 for none."""
    return int(Path(job["resume"]).name.rpartition("_")[2]) if job["resume"] else 0


def _command_line(overrides: Sequence[str], python: str = sys.executable) -> list[str]:
    """Return the training command; it joins the Ray cluster at `RAY_ADDRESS`, or starts Ray if that is unset."""
    return [python, "-m", "verl.trainer.main_ppo", *overrides]


def cluster_script(plan: RlPlan, python: str, overrides: Sequence[str]) -> str:
    """Return a shell script for a cluster: `head` and `train` on the first node, `worker` on the others, `stop` on all.

    All nodes must see the training's folder, the engine's Python environment and Treadle's code at the same paths.
    `PYTHONPATH` must name the folder with Treadle's code: Ray passes the variables of `ray start` to its workers.
    """
    machine = plan.machine
    ray = [python, "-m", "ray.scripts.scripts"]
    gpus = f"--num-gpus={machine.num_devices}"
    head = shlex.join([*ray, "start", "--head", f"--port={_RAY_PORT}", gpus, "--include-dashboard=false"])
    worker = f'{shlex.join([*ray, "start"])} --address="${{HEAD:?}}:{_RAY_PORT}" {gpus}'
    return f"""#!/bin/sh
# {plan.address}: {machine.num_nodes} nodes of {machine.num_devices} GPUs.
# Usage: HEAD=<address of the first node> sh cluster.sh head|worker|train|stop
set -eu
export {" ".join(f"{name}={value}" for name, value in _QUIET.items())}
: "${{PYTHONPATH:?set it to the folder with Treadle's code}}"
case "${{1:?head, worker, train or stop}}" in
head) {head} ;;
worker) {worker} ;;
train) RAY_ADDRESS="${{HEAD:?}}:{_RAY_PORT}" {shlex.join(_command_line(overrides, python))} ;;
stop) {shlex.join([*ray, "stop"])} ;;
esac
"""


def _follow(command: list[str], metrics: Path, follower: Follower) -> None:
    """Run verl to its end and write its metrics as events; raise EngineError if it fails."""
    # On one machine workers inherit the environment; on a cluster Ray's runtime environment sets it (see the
    # overrides).
    process = subprocess.Popen(command, env={**os.environ, **_QUIET, METRICS_VARIABLE: str(metrics)})
    try:
        while process.poll() is None:
            follower.poll()
            time.sleep(_POLL_S)
        follower.poll()
    finally:
        if process.poll() is None:
            _terminate(process)
    if process.returncode:
        raise _failure(follower, f"verl ended with code {process.returncode}")


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failure(follower: Follower, what: str) -> EngineError:
    failures = follower.failures()
    if failures:
        what += f"; {len(failures):,} groups could not be rolled out; first cause: {failures[0]}"
    return EngineError(what)
