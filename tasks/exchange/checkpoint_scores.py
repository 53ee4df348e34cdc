"""Collect the scores of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.errors import TreadleError
from treadle.core.runs.address import Address, phase_of
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.tables import CHECKPOINTS
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.scored_rollout import COLUMNS, ScoredRollout
from treadle.report.summary import model_rows
from treadle.stages.models import named_checkpoint

_CARD_FIGURES = ("score", "reward", "num_turns", "calls_requested", "efficiency", "conciseness")


def checkpoint_scores(run: Run, checkpoint: StageRecord) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows of figures of this checkpoint per instance of `scores`, and notes on what could not be read."""
    ours = checkpoint.outputs[CHECKPOINTS.kind]
    records, found, notes = run.records(), list[dict[str, Any]](), list[str]()
    sampled = {
        made.outputs["rollouts"]: made
        for made in records
        if "rollouts" in made.outputs
        and made.imported_from is None
        and any(ref.artifact == ours for ref in made.inputs.get("checkpoint", ()))
        and _is_agent(made, checkpoint)
    }
    counted_tables = set[ArtifactRef]()
    for scored in records:
        read = [ref.artifact for ref in scored.inputs.get("rollouts", ())]
        if scored.stage != "scores" or not any(artifact in sampled for artifact in read):
            continue
        if (table := scored.outputs["scores"]) in counted_tables:
            continue  # A result reused by a later iteration is not another measurement.
        counted_tables.add(table)
        try:
            rollouts = [ScoredRollout.from_row(row) for row in run.rows(table).rows(list(COLUMNS))]
        except TreadleError as error:
            notes.append(f"the scores of {scored.address} are left out: {error}")
            continue
        rows = model_rows(scored.address, dataset_figures(rollouts), ReportSettings())
        found += [row for row in rows if row["figure"] in _CARD_FIGURES and row["value"] is not None]
    return found, notes


def _is_agent(rollouts: StageRecord, checkpoint: StageRecord) -> bool:
    """Return whether the checkpoint was the agent of these rollouts, not only their search summarizer."""
    settings = rollouts.settings if isinstance(rollouts.settings, Mapping) else {}
    server = (settings.get("model") or {}).get("server") or {}
    made = Address.parse(checkpoint.address)
    if isinstance(server.get("model"), str) and (named := named_checkpoint(server["model"])):
        # An address in the configuration may refer to the same stage of a later iteration.
        return (named[0].stage, named[0].qualifier) == (made.stage, made.qualifier)
    if phase_of(Address.parse(rollouts.address).qualifier) is None:
        return False
    first = next(iter(rollouts.inputs.get("checkpoint", ())), None)  # The policy's comes before those of other models.
    return first is not None and first.artifact == checkpoint.outputs[CHECKPOINTS.kind]
