"""Training in an engine's environment, whatever is trained: its files, its processes, and why they failed.

A training lies in one folder. Each of its processes runs one command under the supervisor and tells what goes on
through a file of events. A state counts as complete with its marker, so that a training that was cut off, by
whatever, goes on from the newest complete one. Documented in docs/behaviour/sft.md and docs/behaviour/rl.md.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.engines.devices import VISIBLE, only_gpus
from treadle.core.engines.environments import choose_variant, engine_environ
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.events import STATE_MARKER
from treadle.core.engines.process import Child, log_tail, printable
from treadle.core.errors import ConfigError

_STATE = re.compile(r"(?:checkpoint-|global_step_)(\d+)")
_POLL_S = 0.25
_NO_MEMORY = re.compile(r"OutOfMemoryError|out of memory|can't allocate memory|Cannot allocate memory")
_KILLED = re.compile(r"Signal 9 \(SIGKILL\)")


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """Where the files of one training lie. Use it for one set of rows and semantic settings only."""

    path: Path

    @property
    def parquet(self) -> Path:
        """Rows as Treadle writes them."""
        return self.path / "rows.parquet"

    @property
    def output(self) -> Path:
        """What the engine writes: states, adapters or weights, its own logs."""
        return self.path / "output"

    @property
    def model(self) -> Path:
        """The trained model in Hugging Face format; there only when it is complete."""
        return self.path / "model"

    @property
    def events(self) -> Path:
        """JSON lines from the engine."""
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        """Everything that the engine printed, a file per process."""
        return self.path / "logs"

    @property
    def trained(self) -> Path:
        """Marker of a training that ended and was checked."""
        return self.path / "trained"

    def complete_states(self) -> dict[int, Path]:
        """The engine's own count of steps -> state that is on the disk as a whole."""
        return {step: path for step, path in self._states() if (path / STATE_MARKER).is_file()}

    def newest_state(self) -> Path | None:
        """The complete state with the most steps."""
        complete = self.complete_states()
        return complete[max(complete)] if complete else None

    def remove_incomplete_states(self) -> None:
        """Remove what a kill left of a state that was being written."""
        for _, path in self._states():
            if not (path / STATE_MARKER).is_file():
                shutil.rmtree(path)

    def _states(self) -> list[tuple[int, Path]]:
        if not self.output.is_dir():
            return []
        found = ((_STATE.fullmatch(path.name), path) for path in self.output.iterdir())
        return [(int(match[1]), path) for match, path in found if match]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the processes of a training are run."""

    variant: str = "auto"
    """Build of the engine."""
    threads: int = 0
    """Compute threads on a CPU; 0 takes all cores that this process may use."""
    offline: bool = True
    """Whether the model hub is out of reach; false where the base model is a hub id."""
    devices: tuple[int, ...] = ()
    """Places of the GPUs that are seen, see `core.engines.devices`; none means all."""
    stall_timeout_s: float = 3600.0
    """How long nothing may be heard before a process counts as hung."""
    num_greedy_tokens: int = 16
    """Ids that the trained model writes after a prompt."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """What transformers writes after a prompt with a model, always the likeliest id."""

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    """By how much each log-probability exceeds the next one."""

    @classmethod
    def of_event(cls, event: Mapping[str, Any] | None) -> Greedy | None:
        """From an event; None where there is none."""
        return cls(tuple(event["ids"]), tuple(event["margins"])) if event else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a training that failed, by cause, in the words of its own configuration."""

    refused: str
    """Who refuses which configuration; what it says follows."""
    memory: str
    """Out of memory."""
    killed: str
    """Killed by the system."""
    diverged: str
    """A loss that is no number."""
    unmoved: str
    """Weights that stayed what they were."""


def follow(
    child: Child, events: EventLog[Any], stall_timeout_s: float, on_event: Callable[[dict[str, Any]], None]
) -> int:
    """Wait for the end of a training process, handing on its events as they come; returns its exit code.

    Whatever ends the wait (also Ctrl-C, or an exception of `on_event`) ends the process with all its descendants.
    Raises EngineError for one of which nothing is heard for `stall_timeout_s`.
    """
    try:
        quiet_since, heard = time.monotonic(), -1
        began = False
        while True:
            code = child.wait(_POLL_S)
            for event in events.new():
                began = began or event["event"] == "begin"
                on_event(event)
            if code is not None:
                return code
            # Once it trains, only events count: a hung process may go on printing.
            now_heard = _size(events.path) + (0 if began else _size(child.log_path))
            if now_heard != heard:
                quiet_since, heard = time.monotonic(), now_heard
            elif time.monotonic() - quiet_since > stall_timeout_s:
                child.stop()
                what = f"hangs: nothing was heard of it for {stall_timeout_s:g} s (stall_timeout_s)"
                raise child.failure(f"{what}; it was ended, and the next attempt goes on from the last state")
    finally:
        child.stop()


def explain_failure(child: Child, code: int, error: Mapping[str, Any] | None, advice: Advice) -> Exception:
    """The one error about a process that ended with `code`: its cause in words, what to do, the end of its log.

    `error` is the event that it left, if it could leave one.
    """
    kind = error["kind"] if error else ""
    message = error_text(error)
    tail = log_tail(child.log_path, 40)
    if kind == "arguments":
        return ConfigError(f"{advice.refused}: {message.partition(': ')[2] or message}")
    if kind == "tools":
        lost = f"lost a tool or a service ({message})"
        return child.failure(f"{lost}; mend it, and the next attempt goes on from the last state")
    if kind == "diverged":
        return child.failure(f"diverged ({message}); {advice.diverged}")
    if kind == "unmoved":
        return child.failure(f"learnt nothing ({message}); {advice.unmoved}")
    if kind == "no_memory" or (not kind and _NO_MEMORY.search(tail)):
        return child.failure(f"ran out of memory; {advice.memory}")
    if code == 137 or _KILLED.search(tail):
        return child.failure(f"was killed (signal 9), as the system does when memory runs out; {advice.killed}")
    return child.failure(f"failed with code {code}" + (f" ({message})" if message else ""))


def error_text(error: Mapping[str, Any] | None) -> str:
    """What an engine said of its failure, on one line that is safe to print; empty where it said nothing."""
    return printable(" ".join(str(error["message"]).split()))[:1000] if error else ""


def training_environ(
    engine: str, folder: EngineFolder, options: EngineOptions, *, without: tuple[str, ...] = ()
) -> dict[str, str]:
    """Environment variables of a training process; `without` names switches that would make it another program."""
    extra = {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_CACHE": str(folder.path / "cache"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLBACKEND": "Agg",
        "WANDB_DIR": str(folder.logs),
        "NO_COLOR": "1",
    }
    if options.offline:
        extra |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if choose_variant(engine, options.variant) == "cpu":
        threads = options.threads or len(os.sched_getaffinity(0))
        # Threads that spin at barriers wait for each other's time slices as soon as anything else wants the cores.
        extra |= {VISIBLE: "", "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    else:
        extra |= only_gpus(options.devices)
    environ = engine_environ(extra)
    for name in without:
        environ.pop(name, None)
    return environ


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
