"""Plans for verl and what belongs to them; no pytest needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.core.config import load_config
from treadle.core.engines.config import Machine
from treadle.rl.config import AlgebraLimits, RlOptions, RlSettings
from treadle.rl.training.plan import RlPlan, plan_phase
from treadle.rl.verl.config import VerlFiles

ROOT = Path("/training")
LABELLED = {"credit": {"model": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}}}
"""Keys that presets with attribution need."""
FOUR_GPUS = Machine(variant="cuda", num_devices=4)


def verl_files(resume: str | None = None, *, root: Path = ROOT, model: Path | None = None) -> VerlFiles:
    """Files of a training in `root`."""
    return VerlFiles(
        job=root / "verl" / "job.json",
        rows=root / "verl" / "train.parquet",
        validation=root / "verl" / "valid.parquet",
        model=model or root / "start",
        output=root / "output",
        loop=root / "verl" / "loop.yaml",
        metrics=root / "verl" / "metrics.jsonl",
        resume=root / "output" / resume if resume else None,
    )


def verl_plan(
    machine: Machine = FOUR_GPUS,
    *,
    num_rows: int = 8000,
    num_validation_rows: int = 160,
    environment: Any = None,
    algebra: AlgebraLimits | None = None,
    **keys: Any,
) -> RlPlan:
    """Return a plan with some keys of `[rl]`."""
    options = load_config(
        RlOptions, data={"engine": "verl", "reward": {"sigma_tool": 0.1, "sigma_length": 0.1}, **keys}
    )
    settings = {"environment": environment} if environment is not None else {}
    return plan_phase(
        RlSettings(options=options, seed=7, algebra=algebra, **settings),
        address="1/rl@phase-1",
        rows_digest="",
        rows={"default": num_rows},
        validation_rows={"default": num_validation_rows} if num_validation_rows else {},
        machine=machine,
    )


def preset_plan(name: str, **keys: Any) -> RlPlan:
    """Return the plan of a preset with further keys of `[rl]`, on the machine that it names."""
    options = load_config(RlOptions, data={"preset": name, "reward": "outcome", **keys})
    machine = Machine(variant="cuda", num_devices=options.num_devices or 1, num_nodes=options.num_nodes)
    return plan_phase(
        RlSettings(options=options, seed=7),
        address="1/rl@phase-1",
        rows_digest="",
        rows={"default": 160_000},
        machine=machine,
    )


def loop_fields(
    question_key: str = "k",
    *,
    uid: str = "u",
    step: int = 1,
    index: int = 0,
    split: str = "train",
    answers: tuple[str, ...] = ("12",),
    text: str = "Question?",
) -> dict[str, Any]:
    """Return what verl passes to the sessions of one question, besides `session_id`."""
    return {
        "uid": uid,
        "global_steps": step,
        "data_source": "math_effi_rl",
        "reward_model": {"ground_truth": list(answers), "style": "rule"},
        "extra_info": {
            "index": index,
            "question": text,
            "split": split,
            "id": question_key,
            "source": "set",
            "choices": [],
        },
    }
