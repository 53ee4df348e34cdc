"""Define what every training in an engine's environment has: its files, its options, and causes of failures.

A training has one folder. Each of its processes runs one command under the supervisor and reports its progress in a
file of events. A state is complete once it has its marker, so an interrupted training resumes from the newest complete
one. `core.engines.training_run` has the flow. Documented in docs/behaviour/sft.md and docs/behaviour/rl.md.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.engines.config import Machine, TrainingOptions
from treadle.core.engines.devices import VISIBLE, first_gpus, num_devices, only_gpus
from treadle.core.engines.environments import engine_environ
from treadle.core.engines.event_log import EventLog
from treadle.core.engines.events import STATE_MARKER
from treadle.core.engines.process import Child, log_tail, printable
from treadle.core.engines.training_engine import TrainingEngine
from treadle.core.errors import ConfigError
from treadle.core.steady_loop import SteadyClock
from treadle.core.store.storage import WatchedPath, storage_errors

_STATE = re.compile(r"(?:checkpoint-|global_step_)(\d+)")
_POLL_S = 0.25
_MAX_STEP_S = 10.0
"""A longer time between two polls means that this process was stopped: handling events takes less."""
_NO_MEMORY = re.compile(r"OutOfMemoryError|out of memory|can't allocate memory|Cannot allocate memory")
_KILLED = re.compile(r"Signal 9 \(SIGKILL\)")


class PathIn:
    """Path of a file or folder in the folder of a training, as an attribute of `EngineFolder`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: EngineFolder, owner: type[EngineFolder]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True, slots=True)
class EngineFolder:
    """Paths of the files of one training. Use it for one set of rows and semantic settings only."""

    path: Path

    parquet = PathIn("rows.parquet")
    """Training rows, as Treadle writes them."""
    output = PathIn("output")
    """Output folder of the engine: states, adapters or weights, its own logs."""
    model = PathIn("model")
    """Trained model in Hugging Face format; exists only once it is complete."""
    events = PathIn("events.jsonl")
    """Events of the engine as JSON lines."""
    logs = PathIn("logs")
    """Folder with everything that the engine printed, one file per process."""
    trained = PathIn("trained")
    """Marker of a training that ended and was checked."""
    nothing_learned = PathIn("nothing_learned")
    """States of a training that seemed not to change the weights; not resumed."""

    def complete_states(self) -> dict[int, Path]:
        """Return the states that are completely on disk, by the engine's own count of steps."""
        return {step: path for step, path in self._states() if (path / STATE_MARKER).is_file()}

    def newest_state(self) -> Path | None:
        """Return the complete state with the most steps, None if there is none."""
        complete = self.complete_states()
        return complete[max(complete)] if complete else None

    def remove_incomplete_states(self) -> None:
        """Delete incomplete states, which a killed process left."""
        for _, path in self._states():
            if not (path / STATE_MARKER).is_file():
                shutil.rmtree(path)

    def set_output_aside(self) -> None:
        """Move the output to `nothing_learned`, so that the next attempt starts from the beginning."""
        if self.output.is_dir():
            shutil.rmtree(self.nothing_learned, ignore_errors=True)
            self.output.rename(self.nothing_learned)

    def _states(self) -> list[tuple[int, Path]]:
        if not self.output.is_dir():
            return []
        found = ((_STATE.fullmatch(path.name), path) for path in self.output.iterdir())
        return [(int(match[1]), path) for match, path in found if match]


@dataclass(frozen=True, slots=True)
class ConfiguredFolder(EngineFolder):
    """Paths of the files of a training that has one configuration file."""

    config = PathIn("config")
    """Configuration for the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options for the processes of a training."""

    variant: str = "auto"
    """Build of the engine."""
    threads: int = 0
    """Compute threads on a CPU; 0 uses all cores that are available to this process."""
    offline: bool = True
    """Whether the model hub is out of reach; false if the base model is a hub id."""
    devices: tuple[int, ...] = ()
    """Indices of the GPUs to use, see `core.engines.devices`; empty means all."""
    num_devices: int | None = 1
    """Number of these GPUs that the processes see, from the first; None means all."""
    stall_timeout_s: float = 3600.0
    """Seconds without progress after which a process counts as hung."""
    num_greedy_tokens: int = 16
    """Number of token ids that the trained model generates after a prompt, as a sample."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Greedy sample of a model with transformers: the likeliest token ids after a prompt."""

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    """Difference of each log-probability to the next likeliest one."""

    @classmethod
    def of_event(cls, event: Mapping[str, Any] | None) -> Greedy | None:
        """Return the sample of an event; None if there is no event."""
        return cls(tuple(event["ids"]), tuple(event["margins"])) if event else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on a failed training by cause, in the terms of its configuration."""

    refused: str
    """Start of the message for a refused configuration; the engine's reason follows."""
    memory: str
    """Advice if the training ran out of memory."""
    killed: str
    """Advice if the system killed a process."""
    diverged: str = "lower learning_rate, or train in bf16 or fp32 instead of fp16"
    """Advice if the training diverged: a loss, gradient, weight or logit is not finite."""
    nothing_learned: str = "check learning_rate and which weights are trained"
    """Advice if the weights did not change."""


def find_machine(engine: TrainingEngine, options: TrainingOptions, num_nodes: int) -> Machine:
    """Return the hardware that a training with these settings uses; raise ConfigError if its GPUs cannot be counted."""
    variant = engine.choose_variant(options.variant)
    count = num_devices(options.num_devices, variant, options.devices)
    return Machine.model_validate({"variant": variant, "num_devices": count, "num_nodes": num_nodes})


def write_rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write an engine's rows as they arrive, replacing the file atomically; return their number.

    Raise StorageError if they cannot be written.
    """
    import pyarrow.parquet as pq

    unfinished = path.with_suffix(".tmp")
    num_rows = 0
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
                num_rows += batch.num_rows
        unfinished.rename(path)
    return num_rows


def follow(
    child: Child,
    events: EventLog[Any],
    stall_timeout_s: float,
    on_event: Callable[[dict[str, Any]], None],
    on_poll: Callable[[], None] = lambda: None,
) -> int:
    """Wait for the end of a training process and pass on its events as they arrive; return its exit code.

    `on_poll` is called several times a second, each time before the events that have arrived.
    However the wait ends (also by Ctrl-C, or an exception of `on_event`), the process is stopped with all its
    descendants. Raise EngineError if it makes no progress for `stall_timeout_s`, and StorageError if the folder of the
    events is moved, because the engine would keep writing to the old path.
    """
    place = WatchedPath(events.path.parent, f"the folder of {child.name}")
    try:
        # If this process is stopped, the training may be too: it is not hung then.
        clock = SteadyClock(max_step_s=_MAX_STEP_S)
        quiet_since, heard = clock.time(), -1
        began = False
        while True:
            place.check()
            code = child.wait(_POLL_S)
            place.check()
            on_poll()
            for event in events.new():
                began = began or event["event"] == "begin"
                on_event(event)
            if code is not None:
                return code
            # Once training has begun, only events count: a hung process may keep printing.
            now_heard = _size(events.path) + (0 if began else _size(child.log_path))
            if now_heard != heard:
                quiet_since, heard = clock.time(), now_heard
            elif clock.time() - quiet_since > stall_timeout_s:
                child.stop()
                what = f"hangs: it sent no events for {stall_timeout_s:g} s (stall_timeout_s)"
                raise child.failure(f"{what}; it was stopped, and the next attempt resumes from the last state")
    finally:
        child.stop()


_OWN_CODES = range(3, 126)
"""Exit codes of an engine that the command passes on: all that mean nothing else to Treadle or to a shell."""


def explain_failure(child: Child, code: int, error: Mapping[str, Any] | None, advice: Advice) -> Exception:
    """Return the error for a process that ended with `code`: its cause, what to do, and the end of its log.

    `error` is the event that the process wrote about its error, None if it wrote none.
    """
    kind = error["kind"] if error else ""
    message = error_text(error)
    tail = log_tail(child.log_path, 40)
    if kind == "arguments":
        return ConfigError(f"{advice.refused}: {message.partition(': ')[2] or message}")
    if kind == "tools":
        lost = f"lost a tool or a service ({message})"
        return child.failure(f"{lost}; fix that, and the next attempt resumes from the last state")
    if kind == "diverged":
        return child.failure(f"diverged ({message}); {advice.diverged}")
    if kind == "nothing_learned":
        return child.failure(f"learnt nothing ({message}); {advice.nothing_learned}")
    if kind == "no_memory" or (not kind and _NO_MEMORY.search(tail)):
        return child.failure(f"ran out of memory; {advice.memory}")
    if code == 137 or _KILLED.search(tail):
        return child.failure(f"was killed (signal 9), as the system does when memory runs out; {advice.killed}")
    failure = child.failure(f"failed with code {code}" + (f" ({message})" if message else ""))
    if code in _OWN_CODES:
        failure.exit_code = code
    return failure


def error_text(error: Mapping[str, Any] | None) -> str:
    """Return an engine's error message on one line that is safe to print; empty if there is none."""
    return printable(" ".join(str(error["message"]).split()))[:1000] if error else ""


def training_environ(engine: TrainingEngine, folder: EngineFolder, options: EngineOptions) -> dict[str, str]:
    """Return the environment variables of a training process."""
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
    is_cpu = engine.choose_variant(options.variant) == "cpu"
    if is_cpu:
        threads = options.threads or len(os.sched_getaffinity(0))
        # Threads that spin at barriers wait for each other's time slices as soon as other processes need the cores.
        extra |= {VISIBLE: "", "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    else:
        extra |= only_gpus(options.devices)
    environ = engine_environ(extra)
    if not is_cpu and options.num_devices is not None:
        # Trainers take a single process that sees several GPUs for a wrong start.
        environ[VISIBLE] = first_gpus(options.num_devices, environ)
    return environ


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
