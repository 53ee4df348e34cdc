"""The configuration behind `treadle demo`: the sample world, the tutor and the embedded model, nothing from outside."""

from __future__ import annotations

from pathlib import Path

from treadle.core.config import load_config
from treadle.core.engines.cache import Notify
from treadle.core.engines.environments import install, is_installed
from treadle.core.errors import ConfigError
from treadle.core.runs import list_runs
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.world import write_world
from treadle.tasks.config import TreadleConfig

NUM_DOCUMENTS = 1_000
NUM_MODEL_QUESTIONS = 20
"""Of the held-out questions, for the embedded model on two cores; the tutor gets 50."""
_CONFIG = Path(__file__).with_name("demo.toml")


def demo_configuration(root: Path, *, fresh: bool, tutor_only: bool, notify: Notify) -> tuple[str, TreadleConfig]:
    """Make what the demo needs; returns the name of its run and its configuration.

    The world is written below `root`; with `fresh` the run gets a new name. Raises ConfigError, EngineError.
    """
    if not tutor_only and not is_installed("serve"):
        notify("installing vLLM into the cache, once (about 2 minutes, 3 GB)")
        install("serve", notify=notify)
    world = write_world(root / "demo-world", documents=NUM_DOCUMENTS, tiers=(0, 1))
    notify(
        f"sample world: {world.num_documents:,} documents, {world.num_heldout:,} held-out questions in {world.folder}"
    )
    tokenizer = write_byte_tokenizer(root / "demo-world" / "tokenizer") if tutor_only else embedded_tokenizer(notify)
    models = ("tutor",) if tutor_only else ("tutor", "smollm2")
    config = load_config(
        TreadleConfig,
        (_CONFIG,),
        data={
            "questions": {
                "sources": [{"path": str(world.questions), "source_field": "source", "split_field": "split"}]
            },
            "environment": {"search": {"corpus": [str(world.corpus)]}},
            "models": {"tutor": {"server": {"tokenizer": str(tokenizer)}}},
            "flow": {"models": list(models)},
            "overrides": {} if tutor_only else {"1/rollouts@smollm2": {"max_questions": NUM_MODEL_QUESTIONS}},
        },
    )
    name = "demo-tutor" if tutor_only else "demo"
    return (_unused(root, name) if fresh else name), config


def _unused(root: Path, name: str) -> str:
    taken = set(list_runs(root))
    for number in range(2, 10_000):
        if (candidate := f"{name}-{number}") not in taken:
            return candidate
    raise ConfigError(f"{root} holds too many demo runs; remove some under {root / 'runs'}")
