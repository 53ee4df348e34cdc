"""Give the states of the model servers that a run's stages use now, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from treadle.core.runs.records import ModelServerStatus
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line

_LABELS = ("run", "instance", "model", "url")


class _ModelServers(Collector):
    """Collector of the states of model servers; each collection reads them again."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; see `Collector`."""
        shown = [(status.address, server) for status in self._run.statuses() for server in status.model_servers]
        prefix = "treadle_model_server"
        up = GaugeMetricFamily(f"{prefix}_up", "1 if it gets requests, 0 if it is down", labels=_LABELS)
        in_flight = GaugeMetricFamily(f"{prefix}_requests_in_flight", "Requests on the wire", labels=_LABELS)
        queued = GaugeMetricFamily(f"{prefix}_requests_queued", "Requests that wait for a slot", labels=_LABELS)
        rate = GaugeMetricFamily(
            f"{prefix}_sampled_tokens_per_second", "Sampled tokens per second in the last minute", labels=_LABELS
        )
        answered = CounterMetricFamily(f"{prefix}_answers", "Answered requests of this attempt", labels=_LABELS)
        errors = CounterMetricFamily(
            f"{prefix}_errors", "Failed attempts by class of failure", labels=(*_LABELS, "kind")
        )
        for address, server in shown:
            labels = self._labels(address, server)
            up.add_metric(labels, float(server.health != "down"))
            in_flight.add_metric(labels, server.in_flight)
            queued.add_metric(labels, server.queued)
            rate.add_metric(labels, server.tokens_per_s)
            answered.add_metric(labels, server.answered)
            for kind, number in sorted(server.errors.items()):
                errors.add_metric([*labels, kind], number)
        yield from (up, in_flight, queued, rate, answered, errors)

    def _labels(self, address: str, server: ModelServerStatus) -> list[str]:
        return [one_line(text) for text in (self._run.run_id, address, server.model, server.url)]


def metrics_text(run: Run) -> bytes:
    """Return the metrics of the model servers of a run's running stages."""
    registry = CollectorRegistry()
    registry.register(_ModelServers(run))
    return generate_latest(registry)
