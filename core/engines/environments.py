"""Engine environments: one virtual environment per engine, build and lock, made with pip in the cache.

An environment's folder is named after the digest of its lock, so a changed lock makes a new one. A marker written last
tells a complete one from the rest of an interrupted installation, which the next one removes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from treadle.core.engines.cache import Notify, cache_lock, cache_root, quiet
from treadle.core.engines.own_code import own_code
from treadle.core.engines.process import Child, log_tail, start_child
from treadle.core.errors import ConfigError, EngineError

VARIANTS = {"serve": ("cpu", "cuda"), "sft": ("cpu", "cuda"), "trl": ("cpu", "cuda"), "verl": ("cpu", "cuda")}
"""Builds that each engine has a lock for."""
SIZES = {
    "serve-cpu": "2.5 GB",
    "serve-cuda": "about 10 GB",
    "sft-cpu": "5.2 GB",
    "sft-cuda": "about 6 GB",
    "trl-cpu": "1.5 GB",
    "trl-cuda": "about 10 GB",
    "verl-cpu": "1.8 GB",
    "verl-cuda": "about 11 GB",
}
"""Disk that an installed environment takes."""
_STRAYS = {"verl": ("scripts", "tests")}
"""Folders that an engine's wheel drops beside its own package, where anybody's `import tests` would find them."""
_COMPLETE = ".complete"
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|Connection refused"
    r"|NewConnectionError|ConnectTimeoutError|Read timed out|ProxyError",
)


def choose_variant(engine: str, variant: str = "auto") -> str:
    """Settle on `cpu` or `cuda`; raises ConfigError for an unknown engine or build."""
    if engine not in VARIANTS:
        raise ConfigError(f"unknown engine {engine!r}; known: {', '.join(VARIANTS)}")
    if variant == "auto":
        return "cuda" if has_gpu() else "cpu"
    if variant not in VARIANTS[engine]:
        raise ConfigError(f"engine {engine} has no build {variant!r}; known: {', '.join(VARIANTS[engine])}")
    return variant


def has_gpu() -> bool:
    """Whether the NVIDIA driver has at least one GPU that `CUDA_VISIBLE_DEVICES` does not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    folder = Path("/proc/driver/nvidia/gpus")
    return not hidden and folder.is_dir() and any(folder.iterdir())


def lock_text(engine: str, variant: str) -> str:
    """The lock of one build, as shipped."""
    return files("treadle.core.engines").joinpath("locks", f"{engine}-{variant}.txt").read_text(encoding="utf-8")


def environment_path(engine: str, variant: str = "auto") -> Path:
    """Where the environment lies or would lie."""
    variant = choose_variant(engine, variant)
    pins = sorted(line for line in lock_text(engine, variant).splitlines() if line and not line.startswith("#"))
    key = "\n".join([*pins, f"python {sys.version_info.major}.{sys.version_info.minor}"])
    return cache_root() / "envs" / f"{engine}-{variant}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def is_installed(engine: str, variant: str = "auto") -> bool:
    """Whether the environment is there and complete."""
    return (environment_path(engine, variant) / _COMPLETE).is_file()


def installed() -> dict[str, Path]:
    """Every complete environment of the present locks, by `<engine>-<variant>`."""
    found = {f"{name}-{kind}": environment_path(name, kind) for name, kinds in VARIANTS.items() for kind in kinds}
    return {name: path for name, path in found.items() if (path / _COMPLETE).is_file()}


def python_of(engine: str, variant: str = "auto") -> Path:
    """The environment's interpreter; raises EngineError with the command that installs it."""
    if not is_installed(engine, variant):
        wanted = "" if variant == "auto" else f" --variant {variant}"
        raise EngineError(f"engine {engine} is not installed; run: treadle env install {engine}{wanted}")
    return environment_path(engine, variant) / "bin" / "python"


def engine_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables for an engine: ours, without what would leak Python paths, and with Treadle's code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    # GPUs are counted as `nvidia-smi` counts them.
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **kept,
        "PYTHONPATH": str(own_code()),
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


def install(engine: str, variant: str = "auto", *, notify: Notify = quiet) -> Path:
    """Install an engine's environment, or return the one that is there; raises EngineError with pip's last lines."""
    variant = choose_variant(engine, variant)
    target = environment_path(engine, variant)
    if (target / _COMPLETE).is_file():
        return target
    with cache_lock(target, notify):
        if (target / _COMPLETE).is_file():
            return target
        if target.exists():
            notify(f"removing an unfinished installation in {target}")
            shutil.rmtree(target)
        started = time.monotonic()
        size = SIZES[f"{engine}-{variant}"]
        notify(f"installing engine {engine} ({variant}) into {target}: {size}, 2 to 10 minutes, once per machine")
        _build(engine, variant, target, notify)
        (target / _COMPLETE).write_text(f"{time.time():.0f}\n", encoding="utf-8")
        notify(f"installed engine {engine} ({variant}) in {time.monotonic() - started:.0f} s")
    return target


def _build(engine: str, variant: str, target: Path, notify: Notify) -> None:
    log = target.with_name(target.name + ".log")
    log.unlink(missing_ok=True)
    lock = target.with_name(target.name + ".lock.txt")
    lock.write_text(lock_text(engine, variant), encoding="utf-8")
    total = sum("==" in line and not line.startswith("#") for line in lock.read_text(encoding="utf-8").splitlines())
    pip_environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    create = [sys.executable, "-m", "venv", str(target)]
    _step(start_child(create, name="venv", log_path=log, env=pip_environ), 0, notify, f"venv {target}")
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command = [str(target / "bin" / "python"), "-m", "pip", "install", *options, "-r", str(lock)]
    _step(
        start_child(command, name="pip", log_path=log, env=pip_environ), total, notify, f"engine {engine} ({variant})"
    )
    for stray in _STRAYS.get(engine, ()):
        for folder in target.glob(f"lib/python*/site-packages/{stray}"):
            shutil.rmtree(folder)


def _step(child: Child, total: int, notify: Notify, what: str) -> None:
    """Follow one step of an installation to its end; a line of progress every few seconds."""
    try:
        said = 0.0
        while (code := child.wait(1.0)) is None:
            if total and time.monotonic() - said > 10.0:
                said = time.monotonic()
                notify(_pip_progress(child.log_path, total))
    finally:
        child.stop()
    if code:
        raise EngineError(explain_failure(what, code, child.log_path))


def _pip_progress(log: Path, total: int) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "Installing collected packages" in text:
        return f"  unpacking {total} packages"
    return f"  fetched {text.count('Collecting ')} of {total} packages"


def explain_failure(what: str, code: int, log: Path) -> str:
    """One readable message about a failed installation: the usual causes by name, else the end of pip's log."""
    tail = log_tail(log, 12)
    if "ensurepip" in tail:
        return f"cannot install {what}: this Python has no ensurepip (Debian, Ubuntu: install python3-venv)"
    if "No space left on device" in tail:
        return f"cannot install {what}: the disk of {log.parent} is full; free space or set TREADLE_CACHE"
    if _NETWORK.search(log_tail(log, 60)):
        return f"cannot install {what}: the package index cannot be reached; check the network or PIP_INDEX_URL"
    if "torch==" in tail and "No matching distribution" in tail:
        return (
            f"cannot install {what}: the package index has no CPU build of torch; "
            "set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds (docs/guides/serving.md)"
        )
    return f"cannot install {what}: pip ended with code {code}; log: {log}\n{tail}"
