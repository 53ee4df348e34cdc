"""Install engine environments: one virtual environment per engine, build and lock, made with pip in the cache.

An environment's folder is named after the digest of its lock, so a changed lock creates a new one. A marker that is
written last distinguishes complete environments from interrupted installations, which the next installation removes.

An environment is defined by its locks alone: `locks/<engine>-<variant>.txt`. Comments in them give its size on disk
(`# size: 2.5 GB`), the modules that `treadle doctor` imports (`# imports: torch, trl`) and folders that a wheel
installs next to its own package, where any `import tests` would find them (`# removed folders: tests`).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import shutil
import time
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from treadle.core.engines.cache import Notify, cache_lock, cache_root, quiet
from treadle.core.engines.interpreters import ENGINE_PYTHON, engine_interpreter
from treadle.core.engines.own_code import own_code
from treadle.core.engines.process import Child, log_tail, start_child
from treadle.core.errors import ConfigError, EngineError

WITHOUT_DIGESTS = frozenset({"torch", "torchaudio", "torchcodec", "torchvision", "triton"})
"""Packages whose builds differ between package indexes under one version; locks give no digests for them."""
_COMPLETE = ".complete"
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|Connection refused"
    r"|NewConnectionError|ConnectTimeoutError|Read timed out|ProxyError",
)


@functools.cache
def builds() -> dict[str, tuple[str, ...]]:
    """Return the engines that have locks, each with its builds."""
    names = sorted(file.name.removesuffix(".txt").rpartition("-") for file in _locks().iterdir())
    return {engine: tuple(one for name, _, one in names if name == engine) for engine, _, _ in names}


def choose_variant(engine: str, variant: str = "auto") -> str:
    """Return the build to use, `cpu` or `cuda`; raise ConfigError for an unknown engine or build."""
    known = builds()
    if engine not in known:
        raise ConfigError(f"unknown engine {engine!r}; known: {', '.join(known)}")
    if variant == "auto":
        return "cuda" if "cuda" in known[engine] and has_gpu() else "cpu"
    if variant not in known[engine]:
        raise ConfigError(f"engine {engine} has no build {variant!r}; known: {', '.join(known[engine])}")
    return variant


def has_gpu() -> bool:
    """Return whether the NVIDIA driver has at least one GPU that `CUDA_VISIBLE_DEVICES` does not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    folder = Path("/proc/driver/nvidia/gpus")
    return not hidden and folder.is_dir() and any(folder.iterdir())


def lock_text(engine: str, variant: str) -> str:
    """Return the lock of one build, as shipped."""
    return _locks().joinpath(f"{engine}-{variant}.txt").read_text(encoding="utf-8")


def _locks() -> Traversable:
    return files("treadle.core.engines").joinpath("locks")


def lock_fact(engine: str, variant: str, name: str) -> str:
    """Return a fact from the comments of a lock, such as `size`; empty if it does not give it."""
    lines = lock_text(engine, variant).splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith(f"# {name}: ")), "")


def pins(lock: str) -> tuple[list[str], list[str]]:
    """Return the lines of a lock with digests, and those of `WITHOUT_DIGESTS`: pip does not accept both in one file."""
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    with_digests = [line for line in lines if " --hash=sha256:" in line]
    return with_digests, [line for line in lines if line not in with_digests]


def environment_path(engine: str, variant: str = "auto") -> Path:
    """Return the path of the environment, whether it is installed or not."""
    variant = choose_variant(engine, variant)
    # Digests do not count: adding some to a lock does not change which packages are installed.
    versions = sorted(line.split(" ")[0] for line in itertools.chain(*pins(lock_text(engine, variant))))
    key = "\n".join([*versions, f"python {ENGINE_PYTHON}"])
    return cache_root() / "envs" / f"{engine}-{variant}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def is_installed(engine: str, variant: str = "auto") -> bool:
    """Return whether the environment exists and is complete."""
    return (environment_path(engine, variant) / _COMPLETE).is_file()


def installed() -> dict[str, Path]:
    """Return every complete environment of the current locks, by `<engine>-<variant>`."""
    found = {f"{name}-{kind}": environment_path(name, kind) for name, kinds in builds().items() for kind in kinds}
    return {name: path for name, path in found.items() if (path / _COMPLETE).is_file()}


def python_of(engine: str, variant: str = "auto") -> Path:
    """Return the environment's interpreter; raise EngineError with the install command if it is not installed."""
    if not is_installed(engine, variant):
        wanted = "" if variant == "auto" else f" --variant {variant}"
        raise EngineError(f"engine {engine} is not installed; run: treadle env install {engine}{wanted}")
    return environment_path(engine, variant) / "bin" / "python"


def engine_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return environment variables for an engine: those of this process without Python's, and the path of our code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    # Make CUDA number GPUs like `nvidia-smi`.
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **kept,
        "PYTHONPATH": str(own_code()),
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


def install(engine: str, variant: str = "auto", *, notify: Notify = quiet) -> Path:
    """Install an engine's environment, or return the existing one; raise EngineError with pip's last lines."""
    variant = choose_variant(engine, variant)
    target = environment_path(engine, variant)
    if (target / _COMPLETE).is_file():
        return target
    interpreter = engine_interpreter(f"{engine} ({variant})")
    with cache_lock(target, notify):
        # Another process may have installed it while this one waited for the lock.
        if (target / _COMPLETE).is_file():
            return target
        if target.exists():
            notify(f"removing an unfinished installation in {target}")
            shutil.rmtree(target)
        started = time.monotonic()
        size = lock_fact(engine, variant, "size")
        notify(f"installing engine {engine} ({variant}) into {target}: {size}, 2 to 10 minutes, once per machine")
        _build(engine, variant, target, interpreter, notify)
        (target / _COMPLETE).write_text(f"{time.time():.0f}\n", encoding="utf-8")
        notify(f"installed engine {engine} ({variant}) in {time.monotonic() - started:.0f} s")
    return target


def _build(engine: str, variant: str, target: Path, interpreter: Path, notify: Notify) -> None:
    log = target.with_name(target.name + ".log")
    log.unlink(missing_ok=True)
    with_digests, without = pins(lock_text(engine, variant))
    pip_environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    create = [str(interpreter), "-m", "venv", str(target)]
    _step(start_child(create, name="venv", log_path=log, env=pip_environ), 0, notify, f"venv {target}")
    for lines, suffix, checked in ((with_digests, ".lock.txt", ["--require-hashes"]), (without, ".builds.txt", [])):
        if lines:
            lock = target.with_name(target.name + suffix)
            lock.write_text("\n".join(lines) + "\n", encoding="utf-8")
            options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", *checked]
            command = [str(target / "bin" / "python"), "-m", "pip", "install", *options, "-r", str(lock)]
            child = start_child(command, name="pip", log_path=log, env=pip_environ)
            _step(child, len(lines), notify, f"engine {engine} ({variant})")
    for stray in filter(None, lock_fact(engine, variant, "removed folders").split(", ")):
        for folder in target.glob(f"lib/python*/site-packages/{stray}"):
            shutil.rmtree(folder)


def _step(child: Child, total: int, notify: Notify, what: str) -> None:
    """Wait for the end of one step of an installation, and report progress every few seconds."""
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
    """Return one readable message about a failed installation: a usual cause by name, else pip's last lines."""
    tail = log_tail(log, 12)
    if "ensurepip" in tail:
        return f"cannot install {what}: this Python has no ensurepip (Debian, Ubuntu: install python3-venv)"
    if "No space left on device" in tail:
        return f"cannot install {what}: the disk of {log.parent} is full; free space or set TREADLE_CACHE"
    if _NETWORK.search(log_tail(log, 60)):
        return f"cannot install {what}: the package index cannot be reached; check the network or PIP_INDEX_URL"
    if "DO NOT MATCH THE HASHES" in log_tail(log, 60):
        return f"cannot install {what}: the package index served a file with a wrong hash; log: {log}\n{tail}"
    if "torch==" in tail and "No matching distribution" in tail:
        return (
            f"cannot install {what}: the package index has no CPU build of torch; "
            "set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds (docs/guides/serving.md)"
        )
    return f"cannot install {what}: pip ended with code {code}; log: {log}\n{tail}"
