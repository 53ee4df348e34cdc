"""Compare mathematical answers by computer algebra, in a small pool of confined worker processes.

Answers are written by models, so a comparison may run forever. A worker is limited in CPU time and memory, and replaced
if it crashes. If an answer cannot be parsed, the algebra fails or a limit is reached, the answers count as unequal, and
the cause is reported and counted. If no worker can be started, that is an error, never a verdict.
"""

from __future__ import annotations

import importlib.util
import logging
import queue
import signal
import threading
from collections import Counter

import orjson

from treadle.core.answers.math_equal import SymbolicVerdict
from treadle.core.errors import ConfigError, EngineError
from treadle.core.untrusted.worker_process import WorkerEnded, WorkerNotStarted, WorkerProcess

_log = logging.getLogger(__name__)

MAX_REQUESTS = 2_000
"""Requests after which a worker is replaced, because the algebra's caches only grow."""

MAX_FAILED_STARTS = 3
"""Failed starts in a row after which no other is tried, because each may take minutes."""


class SymbolicChecker:
    """Comparison of LaTeX expressions by computer algebra, in other processes. Safe to use from several threads.

    Workers start with the first comparison that needs them, and stop when the context ends.
    """

    def __init__(self, *, workers: int = 1, limit_s: float = 2.0, memory_mib: int = 1024) -> None:
        self.limit_s = limit_s
        self.memory_mib = memory_mib
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._failed_starts = 0
        self._start_failure: EngineError | None = None
        self.num_checks = 0
        self.undecided: Counter[str] = Counter()
        """Cause -> number of comparisons that it left undecided; see `SymbolicVerdict`."""
        for _ in range(workers):
            self._idle.put(None)

    def __enter__(self) -> SymbolicChecker:
        """Enter the context; raise ConfigError if the algebra is not installed."""
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "the symbolic layer of math answers needs the package math-verify; "
                "pip install math-verify, or set scores.symbolic = false"
            )
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            workers, self._all = self._all, set()
        for worker in workers:
            worker.close()
        if self.undecided:
            causes = ", ".join(f"{cause} {count:,}" for cause, count in self.undecided.most_common())
            _log.warning(
                "computer algebra could not decide %s of %s comparisons, which count as unequal: %s",
                f"{self.undecided.total():,}",
                f"{self.num_checks:,}",
                causes,
            )

    def check(self, prediction: str, gold: str) -> SymbolicVerdict:
        """Compare two expressions; raise EngineError if no worker can give a verdict."""
        verdict = self._check(prediction, gold)
        with self._lock:
            self.num_checks += 1
            if verdict.cause is not None:
                self.undecided[verdict.cause] += 1
        return verdict

    def _check(self, prediction: str, gold: str) -> SymbolicVerdict:
        """Compare two expressions, in a fresh worker if the first one fails because of earlier requests.

        After a crash or lack of memory, the comparison is repeated in a fresh worker unless it was the worker's first
        request; after a kill from outside, it is always repeated, but three kills raise EngineError. It is not repeated
        if it ran out of CPU time.
        """
        num_kills, needs_fresh = 0, False
        while num_kills < 3:
            worker = self._idle.get()
            verdict = None
            try:
                if worker is None or worker.num_requests >= (1 if needs_fresh else MAX_REQUESTS):
                    worker = self._replace(worker)
                verdict = worker.compare(prediction, gold)
                is_first = worker.num_requests == 1
            finally:
                if worker is not None and (verdict is None or not worker.is_usable or verdict.cause == "memory"):
                    self._discard(worker)
                    worker = None
                # Always return the slot, empty if the worker was discarded.
                self._idle.put(worker)
            num_kills += verdict.cause == "killed"
            needs_fresh |= verdict.cause in ("memory", "crash")
            if verdict.cause not in ("memory", "crash", "killed") or (is_first and verdict.cause != "killed"):
                return verdict
        raise EngineError("the symbolic worker process was killed repeatedly; the machine may be out of memory")

    def _replace(self, old: _Worker | None) -> _Worker:
        if old is not None:
            self._discard(old)
        if self._start_failure is not None:
            raise self._start_failure
        worker = None
        try:
            worker = _Worker(self.limit_s, self.memory_mib)
            with self._lock:
                self._all.add(worker)
            worker.wait_ready()
        except WorkerNotStarted as error:
            if worker is not None:
                self._discard(worker)
            self._failed_starts += 1
            failure = EngineError(f"the symbolic worker process did not start: {error}")
            if self._failed_starts >= MAX_FAILED_STARTS:
                self._start_failure = failure
            raise failure from error
        self._failed_starts = 0
        return worker

    def _discard(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()


class _Worker(WorkerProcess):
    def __init__(self, limit_s: float, memory_mib: int) -> None:
        super().__init__("treadle.core.answers.symbolic_worker", str(limit_s), str(memory_mib))
        self._limit_s = limit_s

    def compare(self, prediction: str, gold: str) -> SymbolicVerdict:
        """Compare two expressions. The limit is CPU time; the timeout only catches a machine that hangs."""
        request = orjson.dumps({"prediction": _encodable(prediction), "gold": _encodable(gold)})
        try:
            reply = self.ask(request, limit_s=20 * self._limit_s + 10)
        except TimeoutError:
            return SymbolicVerdict(False, "killed")
        except WorkerEnded as ended:
            if ended.code in (-signal.SIGPROF, -signal.SIGXCPU):
                return SymbolicVerdict(False, "time")
            return SymbolicVerdict(False, "killed" if ended.is_kill else "crash")
        equal, cause = reply.get("equal"), reply.get("cause")
        if not isinstance(equal, bool) or not isinstance(cause, str | None):
            self.kill()
            return SymbolicVerdict(False, "crash")
        return SymbolicVerdict(equal, cause)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be sent, by question marks, which equal nothing."""
    return text.encode("utf-8", "replace").decode("utf-8")
