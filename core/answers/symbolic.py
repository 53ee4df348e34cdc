"""The symbolic layer of math equality: a small pool of confined worker processes.

Answers are written by models, so a comparison may be made to take for ever. A worker is limited in CPU time and
memory and replaced when it dies. Dying of the answer is a verdict ("not equal", with the limit that was met); being
unable to get a verdict at all is an error, never a verdict.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any

import orjson

from treadle.core.answers.math_equal import SymbolicVerdict
from treadle.core.errors import ConfigError, EngineError

START_TIMEOUT_S = 120.0
"""Loading the algebra takes about a second; a machine under heavy load may need many."""

MAX_REQUESTS = 2_000
"""A worker is replaced after so many, because the algebra's caches only grow."""

MAX_FAILED_STARTS = 3
"""After so many failed starts in a row no further one is tried: each may take START_TIMEOUT_S."""


class SymbolicChecker:
    """Compares LaTeX expressions by computer algebra, in other processes. Safe to use from several threads.

    Workers start with the first comparison that needs them and stop with the context.
    """

    def __init__(self, *, workers: int = 1, limit_s: float = 2.0, memory_mib: int = 1024) -> None:
        self.limit_s = limit_s
        self.memory_mib = memory_mib
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._failed_starts = 0
        self._start_failure: EngineError | None = None
        for _ in range(workers):
            self._idle.put(None)

    def __enter__(self) -> SymbolicChecker:
        """Raises ConfigError if the algebra is not installed."""
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "the symbolic layer of math answers needs the package math-verify; "
                "install treadle[math] or set scores.symbolic = false"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            workers, self._all = self._all, set()
        for worker in workers:
            worker.stop()

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        """Compare two expressions; raises EngineError if no worker could give a verdict.

        A worker that died or ran out of memory may have been brought there by earlier requests: if it had any, the
        request is made once more to a fresh one. Running out of CPU time is final at once.
        """
        for _ in range(3):
            worker = self._idle.get()
            verdict = None
            try:
                if worker is None or worker.num_requests >= MAX_REQUESTS:
                    worker = self._replace(worker)
                verdict = worker.ask(prediction, gold)
                is_first = worker.num_requests == 1
            finally:
                if worker is not None and (verdict is None or not worker.is_usable or verdict.limit == "memory"):
                    self._discard(worker)
                    worker = None
                self._idle.put(worker)
            if verdict.limit in (None, "time", "depth") or (is_first and verdict.limit != "killed"):
                return verdict
        raise EngineError(
            "the process for symbolic comparison was killed from outside again and again; is memory short?"
        )

    def _replace(self, old: _Worker | None) -> _Worker:
        if old is not None:
            self._discard(old)
        if self._start_failure is not None:
            raise self._start_failure
        worker = _Worker(self.limit_s, self.memory_mib)
        with self._lock:
            self._all.add(worker)
        try:
            worker.wait_ready()
        except EngineError as error:
            self._discard(worker)
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                self._start_failure = error
            raise
        self._failed_starts = 0
        return worker

    def _discard(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.stop()


class _Worker:
    """One process. After `is_usable` turned False it must be stopped."""

    def __init__(self, limit_s: float, memory_mib: int) -> None:
        self.limit_s = limit_s
        self.num_requests = 0
        self.is_usable = True
        # Its own environment: nothing that a model wrote gets near our keys.
        environment = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if key in os.environ}
        module = "treadle.core.answers.symbolic_worker"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(limit_s), str(memory_mib)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment,
            )
        except OSError as error:
            raise EngineError(f"the process for symbolic comparison did not start: {error}") from error
        self._buffer = b""

    def wait_ready(self) -> None:
        """Wait until it has loaded the algebra; raises EngineError."""
        reply = self._receive(START_TIMEOUT_S)
        if reply is None or not reply.get("ready"):
            self.is_usable = False
            cause = reply.get("failed") if reply else f"exit code {self._exit_code()}"
            raise EngineError(f"the process for symbolic comparison did not start: {cause}")

    def ask(self, prediction: str, gold: str) -> SymbolicVerdict:
        """One comparison. Its limit is CPU time; the wall clock only catches a machine that stands still."""
        self.num_requests += 1
        sides = {"prediction": _encodable(prediction), "gold": _encodable(gold)}
        request = orjson.dumps(sides) + b"\n"
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(request)
            self.process.stdin.flush()
        reply = self._receive(20 * self.limit_s + 10)
        if reply is not None:
            return SymbolicVerdict(bool(reply["equal"]), reply.get("limit"))
        self.is_usable = False
        code = self._exit_code()
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            return SymbolicVerdict(False, "time")
        return SymbolicVerdict(False, "killed" if code == -signal.SIGKILL else "crash")

    def stop(self) -> None:
        """End the process and collect it."""
        self.is_usable = False
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next reply; None if the process ended or stayed silent, in which case it is killed."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    self.process.kill()
                    return None
                chunk = os.read(descriptor, 65_536)
                if not chunk:
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = orjson.loads(line)
        return reply

    def _exit_code(self) -> int:
        return self.process.wait()


def _encodable(text: str) -> str:
    """Lone surrogates cannot be sent; a question mark equals nothing."""
    return text.encode("utf-8", "replace").decode("utf-8")
