"""Runs inside the environment of the engine `sft`: what can be seen of its parts without training.

Argument: a JSON object with the folder of golden configurations (`golden`). Prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from treadle.core.engines.weights.change import WeightChange
from treadle.sft.engine.arguments import BadArguments, check_arguments, read_arguments

CPU_BUILD = {"use_cpu": True, "bf16": False}
"""Message for a golden configuration that needs GPUs on a machine without one."""


class Partitioned(torch.nn.Parameter):
    """A tensor as ZeRO-3 leaves it between steps."""

    @classmethod
    def of(cls, *part: float, numel: int) -> Partitioned:
        """With this process's part of all values."""
        weights = cls(torch.empty(0))
        weights.ds_tensor, weights.ds_numel = torch.tensor(part), numel
        return weights


def motion_under_zero3() -> dict[str, Any]:
    """Return the report on partitioned weights before and after they changed."""
    model = torch.nn.Module()
    model.weights = Partitioned.of(3.0, 4.0, numel=9)
    motion, nothing = WeightChange(model), WeightChange(torch.nn.Module())
    answer: dict[str, Any] = {"parameters": motion.num_parameters, "still": motion.length()}
    model.weights.ds_tensor[0] += 5.0
    answer |= {"moved": motion.length(), "finite": motion.is_finite(), "unknown": math.isnan(nothing.length())}
    model.weights.ds_tensor[1] = math.nan
    return answer | {"poisoned": not motion.is_finite()}


def check_golden(path: Path, without: tuple[str, ...]) -> str:
    """Return the message of LLaMA-Factory's parser for a golden config; empty if it accepts it."""
    arguments = {name: value for name, value in read_arguments(path).items() if name not in without}
    try:
        check_arguments({**arguments, **CPU_BUILD})
    except BadArguments as error:
        return str(error)
    return ""


def main(job_json: str) -> None:
    job = json.loads(job_json)
    golden = sorted(Path(job["golden"]).glob("sft-*.yaml"))
    answer = {
        "motion": motion_under_zero3(),
        "golden": {path.name: check_golden(path, ()) for path in golden},
        "without_kernels": {path.name: check_golden(path, ("deepspeed", "enable_liger_kernel")) for path in golden},
    }
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
