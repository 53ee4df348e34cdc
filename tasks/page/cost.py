"""Build the section on usage: requests, tokens, and cost where prices are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.figures import Cell, Figures, money
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results
from treadle.report.page.document import Part, Section
from treadle.tasks.config import TreadleConfig
from treadle.tasks.page.sources import PageRun
from treadle.tasks.summaries.stage_report import role_models


@dataclass(frozen=True, slots=True)
class RoleUsage:
    """Usage of one role of one stage instance."""

    address: str
    role: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """None if the model has no price."""


def cost_section(sources: Sequence[PageRun]) -> list[Section]:
    """Return the section on tokens and cost of the stages that called models."""
    tables: list[Part] = []
    for source in sources:
        # A reused result is counted once, at the iteration that computed it.
        if uses := [use for record in own_results(source.by_time()) for use in role_usages(source, record)]:
            tables += source.named_parts([usage_table(uses)])
    return [Section("cost", "Cost", _READING, tables)] if tables else []


_READING = (
    "Requests to models, by stage and role, at the prices in the run's current configuration; a result that was reused "
    "is counted with the usage that made it."
)


def usage_table(uses: Sequence[RoleUsage]) -> Figures:
    """Return a table with a row per stage instance and role, and a total; costs are shown if any model has prices."""
    is_priced = any(use.cost is not None for use in uses)
    header: tuple[str, ...] = ("stage", "role", "model", "requests", "prompt tokens", "sampled tokens")
    rows: list[tuple[Cell, ...]] = [
        (use.address, use.role, use.model, use.requests, use.prompt_tokens, use.completion_tokens, _cost(use.cost))
        for use in uses
    ]
    counts = (sum(getattr(use, name) for use in uses) for name in ("requests", "prompt_tokens", "completion_tokens"))
    known = sum(use.cost for use in uses if use.cost is not None)
    at_least = "at least " if any(use.cost is None for use in uses) else ""
    rows.append(("all", "", "", *counts, f"{at_least}{money(known)}"))
    if not is_priced:
        return Figures("Requests and tokens", header, tuple(row[:-1] for row in rows), _NO_PRICES)
    return Figures("Requests, tokens and cost", (*header, "cost"), tuple(rows))


_NO_PRICES = (
    "No cost is shown: no model of the run has prices (prompt_price_per_million, completion_price_per_million)."
)


def _cost(cost: float | None) -> str:
    return "?" if cost is None else money(cost)


def role_usages(source: PageRun, record: StageRecord) -> Iterator[RoleUsage]:
    """Yield the usage of each role of a stage instance; nothing if it called no model."""
    metrics = record.metrics
    models = role_models(record, source.run) if record.stage != "scores" else _judges(source, metrics.get("usage", {}))
    if isinstance(usage := metrics.get("usage"), dict):
        for role, used in usage.items():
            yield _use(record, role, models.get(role), used["calls"], used["prompt_tokens"], used["completion_tokens"])
    elif record.stage == "rollouts" and "prompt_tokens" in metrics:
        tokens = metrics["prompt_tokens"], metrics["completion_tokens"] + metrics.get("wasted_tokens", 0)
        yield _use(record, "policy", models.get("policy"), metrics["num_turns"], *tokens)
        if "summarizer" in models:
            yield from _summarizer(source, record, models["summarizer"])


def _judges(source: PageRun, usage: Iterable[str]) -> dict[str, ModelSettings]:
    """Return the model of each role in `scores`; a role is formatted kind:name, and name is that of the model."""
    try:
        models = load_config(TreadleConfig, base=source.run.config()).models
    except ConfigError:
        return {}
    return {role: models[name] for role in usage if (name := role.partition(":")[2]) in models}


def _summarizer(source: PageRun, record: StageRecord, model: ModelSettings) -> Iterator[RoleUsage]:
    """Yield the usage of the summarizer. Only telemetry has its tokens, and its requests are not counted."""
    log = source.telemetry(record, "rollout_telemetry")
    if log:
        prompt = sum(row.get("summarizer_prompt_tokens") or 0 for row in log)
        sampled = sum(row.get("summarizer_completion_tokens") or 0 for row in log)
        yield _use(record, "summarizer", model, 0, prompt, sampled)


def _use(
    record: StageRecord, role: str, model: ModelSettings | None, requests: int, prompt: int, sampled: int
) -> RoleUsage:
    cost = model.cost(prompt, sampled) if model is not None and model.is_priced else None
    name = model.model if model is not None else record.settings.get("model", {}).get("model", "")
    return RoleUsage(record.address, role, name, requests, prompt, sampled, cost)


def seconds_of(record: StageRecord) -> float:
    """Return how long the attempt that completed a stage took."""
    began, ended = (datetime.fromisoformat(time) for time in (record.started_at, record.finished_at))
    return (ended - began).total_seconds()
