"""Define the Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of one service."""

    def __init__(self, num_waiting: Callable[[], float], num_free: Callable[[], float]) -> None:
        """Register the metrics; `num_waiting` and `num_free` are called whenever the metrics are read."""
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "treadle_retriever_requests", "Requests by route and status", ("route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "treadle_retriever_request_seconds", "Time per request, waiting included", ("route",), registry=registry
        )
        self.batch_size = Histogram(
            "treadle_retriever_batch_queries", "Queries searched together", buckets=_BATCH_BUCKETS, registry=registry
        )
        self.cached = Counter("treadle_retriever_cached_queries", "Queries answered from the cache", registry=registry)
        waiting = Gauge("treadle_retriever_waiting_queries", "Queries waiting for a worker", registry=registry)
        free = Gauge("treadle_retriever_free_workers", "Workers that are not searching", registry=registry)
        waiting.set_function(num_waiting)
        free.set_function(num_free)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
