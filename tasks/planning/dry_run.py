"""Say what a run would meet, for dry runs: what its web search needs, and what its model servers lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.core.runs.stage import Instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.server_facts import asked_models, server_facts
from treadle.tasks.planning.web_checks import web_problem


def dry_run_lines(config: TreadleConfig, instances: Sequence[Instance]) -> Iterator[str]:
    """Yield one line per fact; the servers of models that `instances` use are asked."""
    if problem := web_problem(config):
        yield f"warning: {problem}"
    for check in server_facts(asked_models(config, instances)):
        yield f"{check.name}: {check.detail}"
