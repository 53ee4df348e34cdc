"""Check this machine before a run: each check reports what it found and how to fix it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treadle.core.engines.cache import cache_root
from treadle.core.engines.devices import visible_gpus
from treadle.core.engines.environments import (
    builds,
    choose_variant,
    engine_environ,
    environment_path,
    is_installed,
    lock_fact,
    python_of,
)
from treadle.core.engines.gpu_claims import occupied_gpus
from treadle.core.engines.interpreters import ENGINE_PYTHON, find_interpreter
from treadle.core.errors import TreadleError

Status = Literal["ok", "warn", "fail"]
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check. `fail`: something does not work; `warn`: something may not work."""

    name: str
    status: Status
    detail: str
    """One line on what was found."""
    fix: str = ""
    """One line on what to do about it; empty for `ok`, and for facts about a model server, whose `detail` also names
    their consequences."""


def core_checks(root: Path) -> list[Check]:
    """Check what the core needs; `root` is the folder of the runs. Errors become failed checks."""
    found = ((name, lock_fact(name, choose_variant(name), "imports")) for name in builds())
    engines = [(name, modules) for name, modules in found if modules]
    probes: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("processor", _processor),
        ("memory", _memory),
        ("open files", _open_files),
        ("root", lambda: _folder("root", root, 1)),
        ("cache", lambda: _folder("cache", cache_root(), 4)),
        ("gpu", _gpu),
        *((f"engine {name}", lambda name=name, modules=modules: _engine(name, modules)) for name, modules in engines),
    ]
    return [run_check(name, probe) for name, probe in probes]


def run_check(name: str, probe: Callable[[], Check]) -> Check:
    """Run one check; an error of Treadle or of the system becomes a failed one."""
    try:
        return probe()
    except (TreadleError, OSError, subprocess.SubprocessError) as error:
        return Check(name, "fail", str(error).split("\n")[0], "see the message")


def _python() -> Check:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.platform != "linux":
        return Check("python", "warn", f"{found} on {sys.platform}", "use Linux x86-64; engines and sandbox need it")
    for_engines = find_interpreter()
    if for_engines is None:
        return Check("python", "warn", found, f"install Python {ENGINE_PYTHON}, which the engines need, next to it")
    return Check("python", "ok", found if for_engines == Path(sys.executable) else f"{found}; engines: {for_engines}")


def _processor() -> Check:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    detail = f"{cores} cores usable, load {load:.1f}"
    if load > 2 * cores:
        return Check("processor", "warn", detail, "the machine is busy: models start and answer slowly")
    return Check("processor", "ok", detail)


def _memory() -> Check:
    values = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        values[key] = int(rest.split()[0]) * 1024
    free, total = values["MemAvailable"] / _GIB, values["MemTotal"] / _GIB
    detail = f"{free:.1f} GiB of {total:.1f} GiB available"
    if free < 4:
        return Check("memory", "warn", detail, "serving the embedded model takes about 4 GiB: close other programs")
    return Check("memory", "ok", detail)


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = hard if hard != resource.RLIM_INFINITY else 1 << 20
    detail = f"limit {soft}, can be raised to {best}"
    if best < 4096:
        return Check("open files", "warn", detail, "raise the hard limit (`ulimit -Hn`) for many rollouts in flight")
    return Check("open files", "ok", detail)


def _folder(name: str, folder: Path, wanted_gib: int) -> Check:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return Check(name, "fail", f"{existing} is not a folder", f"choose another {name}")
    probe = existing / f".treadle-probe-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return Check(name, "fail", f"{existing} cannot be written: {error.strerror}", f"choose another {name}")
    free = shutil.disk_usage(existing).free / _GIB
    detail = f"{folder}, {free:.1f} GiB free"
    if free < wanted_gib:
        return Check(name, "warn", detail, f"free at least {wanted_gib} GiB")
    return Check(name, "ok", detail)


def _gpu() -> Check:
    if choose_variant("serve") == "cpu":
        return Check("gpu", "ok", "none; models are served by the CPU build of vLLM")
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check("gpu", "warn", "an NVIDIA driver without nvidia-smi", "install the driver's tools")
    query = [program, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        return Check("gpu", "fail", done.stderr.strip().split("\n")[0] or "nvidia-smi failed", "check the driver")
    found = [line.strip() for line in done.stdout.strip().split("\n")]
    return Check("gpu", "ok", "; ".join([*found, *map(str, occupied_gpus(visible_gpus() or ()))]))


def _engine(engine: str, modules: str) -> Check:
    name = f"engine {engine}"
    if not is_installed(engine):
        return Check(name, "warn", f"not installed ({environment_path(engine)})", f"treadle env install {engine}")
    done = subprocess.run(
        [str(python_of(engine)), "-c", f"import {modules}; print(torch.__version__)"],
        env=engine_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    if done.returncode:
        reason = (done.stderr.strip().split("\n") or ["no output"])[-1]
        fix = f"rm -r {environment_path(engine)} && treadle env install {engine}"
        return Check(name, "fail", f"installed but broken: {reason}", fix)
    return Check(name, "ok", f"{environment_path(engine)}, torch {done.stdout.strip().splitlines()[-1]}")
