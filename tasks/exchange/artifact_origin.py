"""Describe the provenance of an exported artifact: instances, digests, settings, sources.

Nothing about the machine is exported: of each path only the last part is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.core.figures import Figures, escape, plain, render_figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import ArtifactRef

_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\].*|s3://.*|file:.*")
_FENCE = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Origin:
    """An artifact in the provenance of another one."""

    address: str
    """Instance that made the artifact."""
    artifact: ArtifactRef
    record: StageRecord | None
    """Record of the instance; None if the instance has a different result now."""

    def as_dict(self) -> dict[str, Any]:
        """Return the origin in a JSON-able form, without paths of the machine."""
        found: dict[str, Any] = {
            "instance": self.address,
            "kind": self.artifact.kind,
            "digest": self.artifact.digest,
            "num_rows": self.artifact.num_rows,
        }
        if self.record is not None:
            found |= {
                "fingerprint": self.record.fingerprint,
                "stage_version": self.record.version,
                "settings": without_paths(self.record.settings),
                "versions": self.record.versions,
                "finished_at": self.record.finished_at,
            }
        return found


def origins(run: Run, record: StageRecord, kind: str) -> list[Origin]:
    """Return a table of a result and everything that it was made from, without duplicates, nearest first."""
    records = {made.address: made for made in run.records()}
    found: dict[tuple[str, str], Origin] = {}
    queue = [Origin(record.address, record.outputs[kind], record)]
    while queue:
        origin = queue.pop(0)
        key = origin.artifact.kind, origin.artifact.digest
        if key in found:
            continue
        found[key] = origin
        for refs in (origin.record.inputs if origin.record is not None else {}).values():
            for ref in refs:
                made = records.get(ref.address)
                in_force = made is not None and made.outputs.get(ref.artifact.kind) == ref.artifact
                queue.append(Origin(ref.address, ref.artifact, made if in_force else None))
    return list(found.values())


def without_paths(value: Any) -> Any:
    """Return JSON-able data in which each string that is a path is reduced to its last part."""
    if isinstance(value, Mapping):
        return {str(key): without_paths(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_paths(item) for item in value]
    if isinstance(value, str) and "\n" not in value and _PATH.fullmatch(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1] or value
    return value


def origin_text(chain: Sequence[Origin]) -> str:
    """Return the provenance as markdown: the tables it was made from, and the sources of the questions."""
    rows = tuple(
        (origin.address, origin.artifact.kind, f"{origin.artifact.num_rows:,}", origin.artifact.digest)
        for origin in chain
    )
    note = (
        ""
        if all(origin.record for origin in chain)
        else "The instance was rerun since, so its former inputs are unknown."
    )
    table = Figures("Made of", ("instance", "table", "rows", "digest"), rows, note)
    sources = list(dict.fromkeys(source for origin in chain for source in _sources(origin)))
    text = render_figures([table])
    if sources:
        text += "\n\nQuestions from: " + ", ".join(map(escape, sources)) + "."
    return text


def _sources(origin: Origin) -> Iterator[str]:
    """Yield the data sets that a `questions` stage read."""
    settings = origin.record.settings if origin.record is not None and origin.record.stage == "questions" else {}
    for source in settings.get("sources", ()) if isinstance(settings, Mapping) else ():
        name = source.get("hub") or source.get("name") or source.get("dataset")
        if isinstance(name, str) and name:
            revision = source.get("revision")
            yield str(without_paths(name)) + (f" at {revision}" if revision else "")


def json_block(value: Any) -> str:
    """Return data as JSON in a markdown code fence that its content cannot close."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    text = "\n".join(map(plain, text.split("\n")))
    fence = "`" * max([3, *(len(match[0]) + 1 for match in _FENCE.finditer(text))])
    return f"{fence}json\n{text}\n{fence}"
