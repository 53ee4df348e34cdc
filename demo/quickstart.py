"""The configuration behind `treadle demo`: the sample world, the tutor and the embedded model, nothing from outside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core.config import load_config
from treadle.core.engines.cache import Notify, cache_root
from treadle.core.engines.environments import SIZES, choose_variant, install, is_installed
from treadle.core.runs import list_runs
from treadle.core.stage import Address
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.world import write_world
from treadle.tasks.config import TreadleConfig

NUM_DOCUMENTS = 1_000
TIERS = (0,)
"""Questions that one call answers: what a model of 135 million weights learns in minutes on two cores."""
ENGINES = {
    "serve": "vLLM, about 2 minutes",
    "sft": "LLaMA-Factory, about 6 minutes",
    "trl": "TRL, about 4 minutes",
}
"""What the demo needs besides Treadle, and how long it took to install."""
_CONFIG = Path(__file__).with_name("demo.toml")
_TUTOR_ONLY: dict[str, Any] = {
    "pools": {"max_questions": 60},
    "flow": {"stages": ["pools", "sft_rows", "rollouts", "scores", "report"], "models": ["tutor"]},
    "rollouts": {"sampling": {"max_tokens": 384}},  # bytes, with its own tokenizer
}
_STEPS = {
    "pools": "the tutor answers questions to train on and mends what went wrong, with real search and Python",
    "sft_rows": "what is right and well formed becomes rows to train on, results of tools masked",
    "sft": "LLaMA-Factory trains SmolLM2-135M on them; about 2 minutes on 2 cores, a line per 10 s",
    "rollouts@phase-1": "the trained model answers training questions, eight times each",
    "selection@phase-1": "group-wise Pareto: the questions whose answers differ most are worth reinforcement",
    "rl@phase-1": "TRL reinforces the trained model on them, with real tools; a line per step",
    "rollouts@tutor": "the tutor answers held-out questions about things that no row names",
    "rollouts@base": "SmolLM2-135M as it came answers them, on vLLM; about a minute",
    "rollouts@tuned": "SmolLM2-135M as it was fine-tuned answers them; about a minute",
    "rollouts@reinforced": "SmolLM2-135M as it was reinforced answers them; about a minute",
    "report": "tables and pictures",
}
"""What a step does, by stage and model, where it is worth a line."""


def demo_configuration(
    root: Path, *, fresh: bool, tutor_only: bool, overrides: Sequence[str] = (), notify: Notify
) -> tuple[str, TreadleConfig]:
    """Make what the demo needs; returns the name of its run and its configuration.

    The world is written below `root`. The run is the newest demo there, with `fresh` one after it. `overrides` are
    KEY=VALUE as for `treadle run`. Raises ConfigError, EngineError.
    """
    load_config(TreadleConfig, (_CONFIG,), overrides)  # a wrong key is told before anything is installed
    if not tutor_only:
        _install_engines(notify)
    world = write_world(root / "demo-world", documents=NUM_DOCUMENTS, tiers=TIERS)
    notify(
        f"sample world: {world.num_documents:,} documents, {world.num_train:,} questions to train on and "
        f"{world.num_heldout:,} held out, in {world.folder}"
    )
    tokenizer = write_byte_tokenizer(root / "demo-world" / "tokenizer") if tutor_only else embedded_tokenizer(notify)
    places = {
        "questions": {"sources": [{"path": str(world.questions), "source_field": "source", "split_field": "split"}]},
        "environment": {"search": {"corpus": [str(world.corpus)]}},
        "models": {"tutor": {"server": {"tokenizer": str(tokenizer)}}},
    }
    data = {**places, **(_TUTOR_ONLY if tutor_only else {})}
    config = load_config(TreadleConfig, (_CONFIG,), overrides, data=data)
    return _run_name(root, "demo-tutor" if tutor_only else "demo", fresh), config


def step_words(address: Address) -> str:
    """What the step of the demo at this address does, for people; empty where it is over in a moment."""
    stage = f"{address.stage}@{address.qualifier}" if address.qualifier else address.stage
    return _STEPS.get(stage, "")


def _install_engines(notify: Notify) -> None:
    """Install what is missing, having said beforehand what all of it comes to."""
    missing = [engine for engine in ENGINES if not is_installed(engine)]
    if missing:
        parts = [f"{ENGINES[engine]} and {SIZES[f'{engine}-{choose_variant(engine)}']}" for engine in missing]
        notify(f"the demo installs, once, into {cache_root()}: {'; '.join(parts)}")
    for engine in missing:
        install(engine, notify=notify)


def _run_name(root: Path, name: str, fresh: bool) -> str:
    """The newest of the runs `name`, `name-2`, `name-3`, ...; with `fresh` the next one."""
    numbered = re.compile(rf"{name}(?:-(\d{{1,9}}))?")
    found = (numbered.fullmatch(run) for run in list_runs(root))
    newest = max((int(match[1] or 1) for match in found if match), default=0)
    number = newest + 1 if fresh else newest
    return name if number <= 1 else f"{name}-{number}"
