"""The configuration behind `treadle demo`: the sample world, the tutor and the embedded model, nothing from outside."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core.config import load_config
from treadle.core.engines.cache import Notify, cache_root
from treadle.core.engines.environments import SIZES, choose_variant, install, is_installed
from treadle.core.runs import list_runs
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.world import write_world
from treadle.tasks.config import TreadleConfig
from treadle.tasks.pace import duration

NUM_DOCUMENTS = 1_000
TIERS = (0,)
"""Questions that one call answers: what a model of 135 million weights learns in minutes on two cores."""
ENGINES = {"serve": ("vLLM", 3), "sft": ("LLaMA-Factory", 3), "trl": ("TRL", 2)}
"""What the demo needs besides Treadle, and how many minutes it took at most to install on two cores."""
_CONFIG = Path(__file__).with_name("demo.toml")
_TUTOR_ONLY: dict[str, Any] = {
    "pools": {"max_questions": 60},
    "flow": {"stages": ["pools", "sft_rows", "rollouts", "scores", "report"], "models": ["tutor"]},
    "rollouts": {"sampling": {"max_tokens": 384}},  # bytes, with its own tokenizer
}


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


def _install_engines(notify: Notify) -> None:
    """Install what is missing, having said beforehand what all of it comes to."""
    missing = [engine for engine in ENGINES if not is_installed(engine)]
    if missing:
        named = [(*ENGINES[engine], SIZES[f"{engine}-{choose_variant(engine)}"]) for engine in missing]
        parts = [f"{name}, about {minutes} minutes and {size}" for name, minutes, size in named]
        notify(f"the demo installs, once, into {cache_root()}: {'; '.join(parts)}")
    for place, engine in enumerate(missing):
        after = sum(ENGINES[later][1] for later in missing[place + 1 :])
        install(engine, notify=_timed(notify, ENGINES[engine][1], after))


def _timed(notify: Notify, usual_minutes: int, minutes_after: int) -> Notify:
    """The same, with the time so far, and what is usually left of this installation and those after it, behind what is
    told of a step under way."""
    began = time.monotonic()

    def tell(line: str) -> None:
        if not line.startswith("  "):
            notify(line)
            return
        so_far_s = time.monotonic() - began
        left_s = max(0.0, 60.0 * usual_minutes - so_far_s) + 60.0 * minutes_after
        told = f"; usually about {duration(left_s)} left of all installations" if left_s else ""
        notify(f"{line}, {duration(so_far_s)} so far{told}")

    return tell


def _run_name(root: Path, name: str, fresh: bool) -> str:
    """The newest of the runs `name`, `name-2`, `name-3`, ...; with `fresh` the next one."""
    numbered = re.compile(rf"{name}(?:-(\d{{1,9}}))?")
    found = (numbered.fullmatch(run) for run in list_runs(root))
    newest = max((int(match[1] or 1) for match in found if match), default=0)
    number = newest + 1 if fresh else newest
    return name if number <= 1 else f"{name}-{number}"
