"""Find the model that training started from, and its licence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.core.engines.base_model import folder_digest
from treadle.core.engines.config import EMBEDDED
from treadle.core.runs.run import Run
from treadle.core.tables import CHECKPOINTS
from treadle.stages.models import named_checkpoint
from treadle.tasks.exchange.artifact_origin import Origin, without_paths
from treadle.tasks.exchange.dataset_export import CARD

EMBEDDED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


_EMBEDDED_LICENCE = "apache-2.0"


_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")


_LICENCE = re.compile(r"^license:[ \t]*([a-z0-9][a-z0-9.-]{0,40})[ \t]*$", re.MULTILINE)


_CARD_CHARS = 8_192


@dataclass(frozen=True, slots=True)
class Base:
    """Model that training started from, at the end of the chain of checkpoints."""

    name: str
    """Hub id, name of a folder, or a description."""
    hub_id: str | None
    licence: str | None
    """Licence as the hub writes it; None if unknown."""


def base_model(run: Run, chain: Sequence[Origin]) -> Base:
    """Return the base model of the first checkpoint in the provenance."""
    rows = [next(run.rows(origin.artifact).rows()) for origin in chain if origin.artifact.kind == CHECKPOINTS.kind]
    row = next((row for row in rows if not named_checkpoint(row["base_model"])), rows[-1])
    model = row["base_model"]
    if model == EMBEDDED:
        return Base(EMBEDDED_MODEL, EMBEDDED_MODEL, _EMBEDDED_LICENCE)
    if named_checkpoint(model):
        return Base(f"the earlier {model}, rerun since", None, None)
    folder = Path(model).expanduser()
    if folder.is_dir() or model.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(model):
        return Base(str(without_paths(str(folder))), None, _licence_of(folder, row["base_digest"]))
    return Base(model, model, None)


def _licence_of(folder: Path, digest: str) -> str | None:
    """Return the licence in the base model's card; None if the folder has changed or has no licence."""
    try:
        if folder_digest(str(folder)) != digest:
            return None
        with (folder / CARD).open(encoding="utf-8", errors="replace") as file:
            head = file.read(_CARD_CHARS).split("\n---", 1)[0]
    except OSError:
        return None
    match = _LICENCE.search(head) if head.startswith("---") else None
    return match[1] if match else None
