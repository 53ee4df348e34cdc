"""Build the command lines of a training with verl, for one node and for several nodes joined by Ray.

On one node the engine's process runs `command_line` itself, and verl starts Ray. For several nodes,
`write_cluster_script` writes a script to run on each of them. Documented in docs/guides/verl.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from treadle.rl.training.plan import RlPlan

RAY_PORT = 6379
"""Port of Ray's head node."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1"}
"""Environment variables that turn off the usage reports of Ray and vLLM."""


def command_line(python: str, overrides: Sequence[str]) -> list[str]:
    """Return the training command; it joins the Ray cluster at `RAY_ADDRESS`, or starts Ray if that is unset."""
    return [python, "-m", "verl.trainer.main_ppo", *overrides]


def merge_command(python: str, state: Path, target: Path) -> list[str]:
    """Return the command that merges the shards of an FSDP state into a model in 16 bits, without a GPU."""
    merge = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--use_cpu_initialization"]
    return [*merge, "--local_dir", str(state / "actor"), "--target_dir", str(target)]


def head_command(python: str, num_devices: int) -> list[str]:
    """Return the command that starts Ray on the first node."""
    ray = [python, "-m", "ray.scripts.scripts", "start", "--head"]
    return [*ray, f"--port={RAY_PORT}", f"--num-gpus={num_devices}", "--include-dashboard=false"]


def worker_command(python: str, num_devices: int, head: str) -> list[str]:
    """Return the command that joins another node to the first, whose address is `head`."""
    ray = [python, "-m", "ray.scripts.scripts", "start"]
    return [*ray, f"--address={head}:{RAY_PORT}", f"--num-gpus={num_devices}"]


def cluster_script(plan: RlPlan, python: str, overrides: Sequence[str]) -> str:
    """Return a shell script for a cluster: `head` and `train` on the first node, `worker` on the others, `stop` on all.

    All nodes must see the training's folder, the engine's environment and Treadle's code at the same paths, and
    `PYTHONPATH` must name the last: Ray passes the environment of `ray start` to its workers.
    """
    machine = plan.machine
    train = shlex.join(command_line(python, overrides))
    worker = shlex.join(worker_command(python, machine.num_devices, "@")).replace("@", "${HEAD:?}")
    return f"""#!/bin/sh
# {plan.address}: {machine.num_nodes} nodes of {machine.num_devices} GPUs.
# Usage: HEAD=<address of the first node> sh cluster.sh head|worker|train|stop
set -eu
export {" ".join(f"{name}={value}" for name, value in QUIET.items())}
: "${{PYTHONPATH:?set it to the folder with Treadle's code}}"
case "${{1:?head, worker, train or stop}}" in
head) {shlex.join(head_command(python, machine.num_devices))} ;;
worker) {worker} ;;
train) RAY_ADDRESS="${{HEAD:?}}:{RAY_PORT}" {train} ;;
stop) {shlex.join([python, "-m", "ray.scripts.scripts", "stop"])} ;;
esac
"""


def write_cluster_script(path: Path, plan: RlPlan, python: str, overrides: Sequence[str]) -> None:
    """Write `cluster_script` to a file."""
    path.write_text(cluster_script(plan, python, overrides), encoding="utf-8")
