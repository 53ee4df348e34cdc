"""Define the jobs of the stage `conversion`: one per trajectory that the teacher rewrites, found again by its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.jobs.keys import job_key
from treadle.core.config import semantic_dump
from treadle.core.errors import ConfigError
from treadle.core.runs.stage import EarlierResult, Rows, StageJobs
from treadle.datagen.conversion.settings import ConversionSettings
from treadle.datagen.conversion.sources import ConversionSource, conversion_sources
from treadle.datagen.conversion.tables import CONVERSIONS
from treadle.environments.planning.dialect import PLAN, PlanningDialect
from treadle.environments.settings import EnvironmentSettings

CONTENT_VERSION = 1
"""Version in the key of each job; increment it if rewrites are asked for or checked in another way."""
_DECIDING = ("min_searches", "max_tokens", "attempts", "rewrite_time_s")
"""Options that a rewrite depends on; the other options select among finished rewrites, or change no result."""
JUDGED = ("status", "reason", "reasons", "detail")
LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """A trajectory that the teacher rewrites. Its journal records are stored under `key` (32 hex digits)."""

    key: str
    source: ConversionSource


def target_dialect(settings: EnvironmentSettings, name: str) -> PlanningDialect:
    """Return the dialect of the rewrites; raise ConfigError if it has no plans or no searches of several queries."""
    dialect = settings.turn_dialect
    if not isinstance(dialect, PlanningDialect) or PLAN not in dialect.by_name or not dialect.splitting:
        raise ConfigError(
            f"conversion.environment = {name!r}: rewrites need plans, and searches with several queries; name an "
            'environment with type = "planning" and dialect = "gap" whose search is enabled'
        )
    return dialect


def all_sources(settings: ConversionSettings, inputs: Mapping[str, Sequence[Rows]]) -> Iterator[ConversionSource]:
    """Yield all trajectories in the order of the rows, also those that cannot be rewritten."""
    return conversion_sources(settings, inputs, target_dialect(settings.target, settings.options.environment))


def key_of(settings: ConversionSettings) -> str:
    """Return a digest of the settings that all jobs have in common."""
    options = {name: value for name, value in semantic_dump(settings.options).items() if name in _DECIDING}
    dialect = target_dialect(settings.target, settings.options.environment).as_json()
    teacher = semantic_dump(settings.teacher)
    return job_key(CONTENT_VERSION, teacher, options, dialect, settings.prompt_digests, settings.tokenizer_digest)


def conversion_jobs(settings: ConversionSettings, inputs: Mapping[str, Sequence[Rows]]) -> Iterator[ConversionJob]:
    """Yield a job for each trajectory that can be rewritten, in order."""
    shared = key_of(settings)
    for source in all_sources(settings, inputs):
        if source.facts is not None:
            yield job_of(shared, source, settings.seed)


def job_of(shared: str, source: ConversionSource, seed: int) -> ConversionJob:
    """Return the job of a source that can be rewritten; `shared` is the digest from `key_of`."""
    whole = source.whole
    return ConversionJob(job_key(shared, seed, whole.key, whole.question, whole.text), source)


def _owners(result: EarlierResult) -> Iterator[str]:
    return (row["job"] for row in result.rows(CONVERSIONS.kind, ("job",)) if row["job"] is not None)


def _records(result: EarlierResult) -> Iterator[tuple[str, bytes]]:
    """Yield the journal records from which a result's rows were made."""
    for row in result.rows(CONVERSIONS.kind):
        if (key := row.pop("job")) is not None:
            yield key, orjson.dumps(stored_part(row))


def stored_part(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that its job stored; a rewrite that was left out afterwards counts as converted."""
    part = {name: row[name] for name in STORED}
    return part | {"status": "converted", "reason": "", "reasons": [], "detail": ""} if is_left_out(row) else part


def is_left_out(row: Mapping[str, Any]) -> bool:
    """Return whether an accepted rewrite was left out because `parallel_share` allows fewer of its kind."""
    return bool(row["status"] == LEFT_OUT)


STORED = (
    *JUDGED, "text", "tag", "plan", "num_searches", "num_batches", "widest", "num_tokens", "reply", "num_attempts",
    "prompt_tokens", "completion_tokens",
)  # fmt: skip
"""Columns that a job stores."""

CONVERSION_JOBS = StageJobs(noun="trajectories", of=conversion_jobs, owners=_owners, records=_records)
