"""Build the configuration of a demo: sample world, tutor and embedded model, without external data."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from treadle.core.config import load_config, merge
from treadle.core.engines.cache import Notify, cache_root
from treadle.core.engines.environments import choose_variant, install, is_installed, lock_fact
from treadle.core.errors import ConfigError
from treadle.core.figures import duration
from treadle.core.runs.run import list_runs
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.demos import DEMOS, FRONTEND
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.tasks.config import TreadleConfig

ENGINES = {
    "serve": ("vLLM", 3),
    "sft": ("LLaMA-Factory", 3),
    "trl": ("TRL", 2),
    "similarity": ("EfficientNet-Lite0", 1),
}
"""Engine -> its name and the maximum number of minutes that its installation takes on two cores."""


def chosen_demo(name: str, *, frontend: bool, tutor_only: bool) -> tuple[str, str]:
    """Return the name of a demo in `DEMOS`, and its command. Raises ConfigError for options that it does not have."""
    command = "treadle demo" if name == "flywheel" else f"treadle demo {name}"
    if not frontend:
        return name, command
    if name != "colbench":
        raise ConfigError("--frontend is an option of treadle demo colbench")
    if tutor_only:
        raise ConfigError(
            "--tutor-only: all models of the demo of pages are the tutor already, and its scores need an engine; "
            "leave it out"
        )
    return FRONTEND, f"{command} --frontend"


def demo_configuration(
    name: str, root: Path, *, fresh: bool, tutor_only: bool, overrides: Sequence[str] = (), notify: Notify
) -> tuple[str, TreadleConfig]:
    """Prepare what a demo needs; return the name of its run and its configuration.

    Installs missing engines unless `tutor_only`, and writes the world below `root`. The run is the newest demo there;
    `fresh` starts the next one. `overrides` are KEY=VALUE as for `treadle run`. Raises ConfigError, EngineError.
    """
    demo = DEMOS[name]
    files = (demo.config, *(() if tutor_only else demo.training))
    load_config(TreadleConfig, files, overrides)  # report a wrong key before anything is installed
    if not tutor_only:
        _install_engines(demo.engines, notify)
    folder = root / f"{demo.run}-world"
    said, places = demo.world.write(folder)
    notify(f"sample world: {said}, in {folder}")
    tokenizer = write_byte_tokenizer(folder / "tokenizer") if tutor_only else embedded_tokenizer(notify)
    data = merge(merge(places, demo.tokenizer_tables(tokenizer)), demo.tutor_only if tutor_only else {})
    config = load_config(TreadleConfig, files, overrides, data=data)
    return _run_name(root, f"{demo.run}-tutor" if tutor_only else demo.run, fresh), config


def _install_engines(engines: Sequence[str], notify: Notify) -> None:
    """Install missing engines, after a message about their total time and size."""
    missing = [engine for engine in engines if not is_installed(engine)]
    if missing:
        named = [(*ENGINES[engine], lock_fact(engine, choose_variant(engine), "size")) for engine in missing]
        parts = [f"{name}, about {minutes} minutes and {size}" for name, minutes, size in named]
        notify(f"the demo installs, once, into {cache_root()}: {'; '.join(parts)}")
    for place, engine in enumerate(missing):
        after = sum(ENGINES[later][1] for later in missing[place + 1 :])
        install(engine, notify=_timed(notify, ENGINES[engine][1], after))


def _timed(notify: Notify, usual_minutes: int, minutes_after: int) -> Notify:
    """Return `notify` with durations appended to messages about a step in progress.

    These are the minutes so far, and the usual minutes left for this installation and the later ones.
    """
    began = time.monotonic()

    def tell(line: str) -> None:
        # Installers indent messages about a step in progress.
        if not line.startswith("  "):
            notify(line)
            return
        elapsed_s = time.monotonic() - began
        left_s = max(0.0, 60.0 * usual_minutes - elapsed_s) + 60.0 * minutes_after
        told = f"; usually about {duration(left_s)} left for all installations" if left_s else ""
        notify(f"{line}, {duration(elapsed_s)} so far{told}")

    return tell


def _run_name(root: Path, name: str, fresh: bool) -> str:
    """Return the newest of the runs `name`, `name-2`, `name-3`, ...; with `fresh` the next one."""
    numbered = re.compile(rf"{name}(?:-(\d{{1,9}}))?")
    found = (numbered.fullmatch(run) for run in list_runs(root))
    newest = max((int(match[1] or 1) for match in found if match), default=0)
    number = newest + 1 if fresh else newest
    return name if number <= 1 else f"{name}-{number}"
