"""Build the manifest section: versions, seeds and digests, enough to find or reproduce every table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import orjson

from treadle.core.figures import Cell, Figures
from treadle.core.runs.records import StageRecord
from treadle.environments.stored_settings import environment_label, type_names
from treadle.report.page.document import Fold, Part, Section
from treadle.tasks.page.cost import seconds_of
from treadle.tasks.page.sources import PageRun

_READING = (
    "Digests name tables by what they hold: equal digests are equal tables, and treadle verify compares them with the "
    "files."
)


def manifest_section(sources: Sequence[PageRun]) -> list[Section]:
    """Return the section on versions, seeds and digests of all runs."""
    parts = [part for source in sources for part in source.named_parts(_parts(source))]
    return [Section("manifest", "Manifest", _READING, parts)]


def _parts(source: PageRun) -> list[Part]:
    info = source.run.info
    facts: list[tuple[Cell, ...]] = [
        ("run", info.run_id),
        ("created", info.created_at),
        ("Treadle", info.treadle_version),
        ("source commit", info.git or "-"),
        ("seed", "-" if info.seed is None else str(info.seed)),
        ("configuration", _digest(info.semantic)),
        ("environment", ", ".join(environment_label(*one) for one in type_names(info.semantic).items())),
    ]
    packages: list[tuple[Cell, ...]] = [(name, version) for name, version in sorted(info.packages.items())]
    checkpoints = [row for record in source.by_time() for row in _checkpoints(source, record)]
    parts: list[Part] = [
        Figures("Run", ("what", "value"), tuple(facts)),
        Figures("Stages", ("stage", "version", "seconds", "rows", "fingerprint"), tuple(map(_stage, source.by_time()))),
        Fold("Tables", [Figures("Tables", ("table", "made by", "rows", "digest"), tuple(_tables(source.by_time())))]),
        Fold("Packages", [Figures("Packages", ("package", "version"), tuple(packages))]),
    ]
    header = ("checkpoint", "base", "engine", "steps", "seed", "digest", "versions")
    return [
        *parts,
        *([Fold("Checkpoints", [Figures("Checkpoints", header, tuple(checkpoints))])] if checkpoints else []),
    ]


def _digest(semantic: object) -> str:
    """Return 16 hex digits of the digest of the semantic configuration."""
    return hashlib.sha256(orjson.dumps(semantic, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _stage(record: StageRecord) -> tuple[Cell, ...]:
    rows = ", ".join(f"{kind} {ref.num_rows:,}" for kind, ref in sorted(record.outputs.items()))
    return record.address, str(record.version), f"{seconds_of(record):,.1f}", rows or "-", record.fingerprint[:12]


def _tables(records: Sequence[StageRecord]) -> Iterator[tuple[Cell, ...]]:
    for record in records:
        for kind, ref in sorted(record.outputs.items()):
            yield kind, record.address, ref.num_rows, ref.digest


def _checkpoints(source: PageRun, record: StageRecord) -> Iterator[tuple[Cell, ...]]:
    ref = record.outputs.get("checkpoint")
    for row in source.rows(ref, record.address):
        versions = ", ".join(f"{name} {version}" for name, version in sorted(orjson.loads(row["versions"]).items()))
        steps = row["chosen_step"] if row["chosen_step"] is not None else row["num_steps"]
        digest = ref.digest if ref is not None else ""
        yield row["name"], row["base_model"], row["engine"], steps, str(row["seed"]), digest, versions
