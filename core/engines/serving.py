"""Serve a model on this machine for as long as a run needs it.

A server counts as ready when it has answered a completion, not when its port is open. It listens on the loopback
interface, unless its `extra_args` set another host, and cannot outlive the process that started it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from treadle.core.engines.cache import Notify, cache_root, quiet
from treadle.core.engines.config import EMBEDDED, TutorServer, VllmServer
from treadle.core.engines.devices import only_gpus
from treadle.core.engines.environments import choose_variant, engine_environ, python_of
from treadle.core.engines.process import PROBE_S, Child, start_child
from treadle.core.errors import ConfigError, EngineError
from treadle.core.untrusted.json_text import load_json
from treadle.core.untrusted.origin_guard import AnyHostGuard, OriginGuard

HOST = "127.0.0.1"
TUTOR_MODEL = "treadle-tutor"
"""Model name that the tutor serves."""
_EMBEDDED_MODULE = "treadle.demo.embedded_model"
_PARALLEL_OPTIONS = {
    "--distributed-executor-backend",
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"),
}
"""Arguments of vLLM that set how several GPUs or processes are used."""
_USUAL_START = {"cpu": "usually half a minute on CPU", "cuda": "usually one to three minutes"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Server that answers requests."""

    url: str
    """Base URL of its OpenAI-compatible API, ending in `/v1`."""
    model: str
    """Model name that requests must use."""
    tokenizer_folder: Path | None
    """Folder with `tokenizer.json`; None for a hub id (its files are in the hub's cache) or a tutor without one."""
    child: Child
    """Process of the server."""


@contextlib.contextmanager
def serve(
    settings: VllmServer | TutorServer, *, model_name: str = "", log_folder: Path | None = None, notify: Notify = quiet
) -> Iterator[ServedModel]:
    """Start the server that `settings` describe, wait until it answers, and stop it on leaving.

    `model_name` is the name that requests will use (default: the model's own); the log goes to a new file in
    `log_folder` (default: the cache).

    Raises:
        ConfigError: The port is taken, or the model's folder is not a model.
        EngineError: The server ended, or did not answer in time; includes the end of the log.
    """
    name = model_name or (settings.model if isinstance(settings, VllmServer) else TUTOR_MODEL)
    port = _port(settings.port)
    scratch = Path(tempfile.mkdtemp(prefix="treadle-serve-"))
    try:
        if isinstance(settings, VllmServer):
            argv, environ, tokenizer = _vllm_command(settings, name, port, notify)
            environ["TMPDIR"] = str(scratch)
        else:
            argv, environ, tokenizer = _tutor_command(settings, port)
        log_path = _log_path(log_folder, settings.type, port)
        started = time.monotonic()
        child = start_child(argv, name=f"{settings.type} server for {name}", log_path=log_path, env=environ)
        try:
            url = f"http://{HOST}:{port}/v1"
            notify(f"starting {child.name} ({_expected(settings)}); log: {log_path}")
            child.wait_until(
                lambda left_s: _answers(url, name, timeout_s=min(PROBE_S, max(1.0, left_s))),
                settings.startup_timeout_s,
                notify,
                " (startup_timeout_s)",
            )
            notify(f"{child.name} answers at {url} after {time.monotonic() - started:.0f} s")
            yield ServedModel(url, name, tokenizer, child)
        finally:
            child.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def vllm_arguments(settings: VllmServer, model: str, name: str, port: int, variant: str) -> list[str]:
    """Return the arguments of vLLM's server; `variant` is the build, cpu or cuda."""
    arguments = ["--model", model, "--served-model-name", name, "--host", HOST, "--port", str(port)]
    # Otherwise, the model's own generation_config.json would change the sampling that requests ask for.
    arguments += ["--generation-config", "vllm"]
    arguments += ["--dtype", _number_type(settings, model, variant), "--max-model-len", str(settings.max_model_len)]
    arguments += ["--disable-uvicorn-access-log"]
    # vLLM does not check `Host`, so a web page could reach it by DNS rebinding.
    arguments += ["--middleware", f"{OriginGuard.__module__}.{_guard(settings).__name__}"]
    if settings.revision:
        arguments += ["--revision", settings.revision]
    if variant == "cpu":
        # A seeded request whose prompt is prefilled in chunks crashes vLLM 0.32's CPU engine ("CPU Generator does not
        # use offset"), so prompts are prefilled as a whole.
        arguments += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(8192, settings.max_model_len))]
        # vLLM's scheduler, in a process of its own, would take a core to spin in while the model computes.
        arguments += [] if _sets_parallelism(settings) else ["--distributed-executor-backend", "uni"]
    else:
        arguments += ["--gpu-memory-utilization", str(settings.gpu_memory_share)]
        arguments += _parallel_arguments(settings)
    if not (settings.compile if settings.compile is not None else variant == "cuda"):
        arguments += ["--enforce-eager"]
    return [*arguments, *settings.extra_args]


def _guard(settings: VllmServer) -> type[OriginGuard]:
    """Return the middleware that refuses requests of other origins; it ignores `Host` if the user set the address."""
    moved = any(part.partition("=")[0] == "--host" for part in settings.extra_args)
    return AnyHostGuard if moved else OriginGuard


def _number_type(settings: VllmServer, model: str, variant: str) -> str:
    """Return vLLM's `--dtype`. On a CPU, fp32 models stay fp32: 16 bits would round away most of a short RL training.

    A configured `dtype` other than `auto` is used unchanged.
    """
    if settings.dtype != "auto" or variant != "cpu":
        return settings.dtype
    try:
        config = load_json((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return "auto"
    stored = config.get("dtype", config.get("torch_dtype")) if isinstance(config, dict) else None
    return "float32" if stored == "float32" else "auto"


def _parallel_arguments(settings: VllmServer) -> list[str]:
    """Return the arguments that spread one model over all its GPUs, unless `extra_args` set how."""
    if _sets_parallelism(settings) or len(settings.devices) < 2:
        return []
    return ["--tensor-parallel-size", str(len(settings.devices))]


def _sets_parallelism(settings: VllmServer) -> bool:
    """Return whether `extra_args` set how the model is spread over processes."""
    return any(part.partition("=")[0] in _PARALLEL_OPTIONS for part in settings.extra_args)


def embedded_folder(part: str, notify: Notify = quiet) -> Path:
    """Return the folder of the embedded model's `tokenizer`, or of the whole `model`; create it in the cache if needed.

    The code that creates it belongs to a higher layer and is therefore run as a program. Raise EngineError if it fails.
    """
    log = cache_root() / "logs" / f"embedded-{part}-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    child = start_child([sys.executable, "-m", _EMBEDDED_MODULE, part], name=f"embedded {part}", log_path=log)
    try:
        said = 0
        while (code := child.wait(0.2)) is None:
            said = _forward_lines(log, said, notify)
        _forward_lines(log, said, notify)
    finally:
        child.stop()
    if code != 0:
        raise child.failure("cannot be made")
    answer = orjson.loads(log.read_bytes().splitlines()[-1])
    log.unlink()
    if "error" in answer:
        raise EngineError(answer["error"])
    return Path(answer["folder"])


def _forward_lines(log: Path, said: int, notify: Notify) -> int:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    for line in lines[said:]:
        if not line.startswith("{"):
            notify(line)
    return len(lines)


def _vllm_command(
    settings: VllmServer, name: str, port: int, notify: Notify
) -> tuple[list[str], dict[str, str], Path | None]:
    variant = choose_variant("serve", settings.variant)
    python = python_of("serve", settings.variant)
    # A hub id has its tokenizer in the hub's cache.
    tokenizer = local_model(settings.model, notify, "model folder")
    model = str(tokenizer or settings.model)
    extra = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
        "VLLM_CACHE_ROOT": str(cache_root() / "vllm"),
    }
    if tokenizer is not None:
        extra |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if variant == "cpu":
        threads = settings.threads or len(os.sched_getaffinity(0))
        extra |= {
            "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gb),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            # A short while: threads that spin longer at barriers wait for each other's time slices as soon as other
            # processes need the cores, and those that sleep at once decode a third slower.
            "GOMP_SPINCOUNT": "20000",
            # Without this, vLLM replaces the backend `uni` by `mp`.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    else:
        extra |= only_gpus(settings.devices)
    environ = engine_environ(extra)
    # If the user set this for another server, ours would require a key.
    environ.pop("VLLM_API_KEY", None)
    # vLLM's `vllm` script looks up metadata of a distribution that is missing in the CPU build.
    start = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    return [*start, *vllm_arguments(settings, model, name, port, variant)], environ, tokenizer


def local_model(model: str, notify: Notify, what: str) -> Path | None:
    """Return the folder of a model in Hugging Face format; None if `model` is a hub id.

    `embedded` is created in the cache on first use. `what` begins the message of a ConfigError for a folder that holds
    no model; raise EngineError if `embedded` fails.
    """
    if model == EMBEDDED:
        return embedded_folder("model", notify)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"{what} {path} has no config.json; name a folder in Hugging Face format")
        return path.absolute()
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise ConfigError(f"{what} {model} does not exist")
    return None


def _tutor_command(settings: TutorServer, port: int) -> tuple[list[str], dict[str, str], Path | None]:
    argv = [sys.executable, "-m", settings.module, "--port", str(port), "--persona", settings.persona]
    if settings.tokenizer is not None:
        argv += ["--tokenizer", str(settings.tokenizer.absolute())]
    for option, value in settings.options.items():
        flag = "--" + option.replace("_", "-")
        if value is True:
            argv.append(flag)
        elif value is not False:
            argv += [flag, str(value)]
    return argv, dict(os.environ), settings.tokenizer


def _expected(settings: VllmServer | TutorServer) -> str:
    if isinstance(settings, TutorServer):
        return "a second or two"
    return _USUAL_START[choose_variant("serve", settings.variant)]


def _port(wanted: int) -> int:
    """Return a free port on the loopback interface: the requested one, or any if that is 0."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise ConfigError(
                f"port {wanted} on {HOST} cannot be used ({error.strerror}); 0 selects a free one"
            ) from None
        return int(probe.getsockname()[1])


def _log_path(folder: Path | None, kind: str, port: int) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return (folder or cache_root() / "logs") / f"{kind}-{port}-{stamp}.log"


def still_answers(served: ServedModel) -> bool:
    """Return whether a server that was ready still is; raise EngineError if it refuses the same completion now."""
    return _answers(served.url, served.model, PROBE_S)


def _answers(url: str, model: str, timeout_s: float) -> bool:
    """Return whether a completion of one token succeeds; raise EngineError if the server refuses it."""
    body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0.0}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            answer = json.load(response)
            return isinstance(answer, dict) and bool(answer.get("choices"))
    except urllib.error.HTTPError as error:
        detail = error.read(2000).decode(errors="replace")
        if error.code in (400, 401, 403, 404):
            raise EngineError(f"the server at {url} refuses a completion of {model!r}: {error.code} {detail}") from None
        return False
    except (OSError, ValueError, http.client.HTTPException):
        return False
