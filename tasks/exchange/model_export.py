"""Export a checkpoint as a folder in Hugging Face format with a model card: base, data, training, scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.core.errors import RunError
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.tasks.exchange.artifact_origin import origins, without_paths
from treadle.tasks.exchange.base_model import base_model
from treadle.tasks.exchange.checkpoint_scores import checkpoint_scores
from treadle.tasks.exchange.dataset_export import CARD, copy_checked
from treadle.tasks.exchange.model_card import model_card


def export_model(run: Run, record: StageRecord, target: Path, *, replace: bool = False) -> dict[str, Any]:
    """Write the model of a checkpoint into a new folder that transformers and vLLM load; return a summary.

    Raises RunError if the instance made no model, ArtifactError for a file that has changed, ConfigError if `target`
    cannot be used (see `new_folder`), StorageError.
    """
    if CHECKPOINTS.kind not in record.outputs:
        raise RunError(f"{record.address} made no model; it made {', '.join(record.outputs)}")
    table = run.rows(record.outputs[CHECKPOINTS.kind])
    (row,) = table.rows()
    chain = origins(run, record, CHECKPOINTS.kind)
    base, (scores, notes) = base_model(run, chain), checkpoint_scores(run, record)
    prefix = f"{MODEL_FOLDER}/"
    names = [name.removeprefix(prefix) for name in table.file_names() if name.startswith(prefix)]
    facts: dict[str, Any] = {
        "kind": "model",
        "run": run.run_id,
        "instance": record.address,
        "digest": table.digest,
        "base_model": base.name,
        "license": base.licence,
        "notes": notes,
    }
    with new_folder(target, replace=replace) as folder:
        for name in names:
            if name != CARD:
                copy_checked(run, table, prefix + name, folder / name)
        (folder / CARD).write_text(model_card(run, record, row, chain, base, scores), encoding="utf-8")
        write_facts(
            folder, {**facts, "checkpoint": without_paths(row), "made_of": [origin.as_dict() for origin in chain]}
        )
    return {**facts, "folder": str(target), "num_files": len(names), "num_scored": len(scores)}
