"""Define the Prometheus metrics of the environment service."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_RECENT_STEPS = 1_000
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Metrics:
    """The counters of one service."""

    def __init__(self, num_live: Callable[[], float], num_processes: Callable[[], float]) -> None:
        """Register the metrics; `num_live` and `num_processes` are called whenever the metrics are read."""
        registry = self._registry = CollectorRegistry()
        prefix = "treadle_environment"
        self.created = Counter(
            f"{prefix}_instances_created", "Instances that were created", ("env_type",), registry=registry
        )
        self.failed = Counter(
            f"{prefix}_calls_failed", "Calls that failed, by error code", ("env_type", "code"), registry=registry
        )
        self.released = Counter(f"{prefix}_instances_released", "Instances that callers released", registry=registry)
        self.reaped = Counter(f"{prefix}_instances_reaped", "Idle instances that were released", registry=registry)
        self.requests = Counter(
            f"{prefix}_requests", "Requests by route and status", ("route", "status"), registry=registry
        )
        self.steps = Histogram(
            f"{prefix}_step_seconds", "Time per step, waiting included", buckets=_BUCKETS, registry=registry
        )
        Gauge(f"{prefix}_instances", "Live instances", registry=registry).set_function(num_live)
        Gauge(f"{prefix}_processes", "Processes of instances", registry=registry).set_function(num_processes)
        quantiles = Gauge(
            f"{prefix}_step_quantile_seconds",
            f"Time per step, of the last {_RECENT_STEPS} steps",
            ("quantile",),
            registry=registry,
        )
        self._needs_process = Gauge(
            f"{prefix}_needs_process",
            "1 if new instances get a process each: foreign code, or a call took more than 50 ms of processor time",
            ("env_type",),
            registry=registry,
        )
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)
        quantiles.labels("0.5").set_function(lambda: self._quantile(0.5))
        quantiles.labels("0.95").set_function(lambda: self._quantile(0.95))

    def add_kind(self, env_type: str, needs_process: Callable[[], bool]) -> None:
        """Add a type; `needs_process` is called whenever the metrics are read."""
        self._needs_process.labels(env_type).set_function(lambda: float(needs_process()))

    def observe_step(self, seconds: float) -> None:
        """Note the time of a step."""
        self.steps.observe(seconds)
        self._recent.append(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _quantile(self, share: float) -> float:
        times = sorted(self._recent)
        return times[min(len(times) - 1, int(share * len(times)))] if times else float("nan")
