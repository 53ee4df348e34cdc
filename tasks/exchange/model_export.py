"""Export a checkpoint as a folder in Hugging Face format with a model card: base, data, training, scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.core.engines.base_model import folder_digest
from treadle.core.engines.config import EMBEDDED
from treadle.core.errors import RunError, TreadleError
from treadle.core.figures import Figures, escape, render_figures
from treadle.core.runs.address import Address, phase_of
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifacts import ArtifactRef
from treadle.core.store.exported import new_folder, write_facts
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.eval.config import ReportSettings
from treadle.eval.dataset_figures import dataset_figures
from treadle.eval.metrics import FIGURES
from treadle.eval.scored_rollout import COLUMNS, ScoredRollout
from treadle.report.summary import model_rows
from treadle.stages.models import named_checkpoint
from treadle.tasks.exchange.artifact_origin import Origin, json_block, origin_text, origins, without_paths
from treadle.tasks.exchange.dataset_export import CARD, copy_checked, front_matter

EMBEDDED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
_EMBEDDED_LICENCE = "apache-2.0"
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_LICENCE = re.compile(r"^license:[ \t]*([a-z0-9][a-z0-9.-]{0,40})[ \t]*$", re.MULTILINE)
_CARD_CHARS = 8_192
_CARD_FIGURES = ("score", "reward", "num_turns", "calls_requested", "efficiency", "conciseness")


@dataclass(frozen=True, slots=True)
class Base:
    """Model that training started from, at the end of the chain of checkpoints."""

    name: str
    """Hub id, name of a folder, or a description."""
    hub_id: str | None
    licence: str | None
    """Licence as the hub writes it; None if unknown."""


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
    base, (scores, notes) = _base(run, chain), _scores(run, record)
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
        (folder / CARD).write_text(_card(run, record, row, chain, base, scores), encoding="utf-8")
        write_facts(
            folder, {**facts, "checkpoint": without_paths(row), "made_of": [origin.as_dict() for origin in chain]}
        )
    return {**facts, "folder": str(target), "num_files": len(names), "num_scored": len(scores)}


def _base(run: Run, chain: Sequence[Origin]) -> Base:
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


def _scores(run: Run, checkpoint: StageRecord) -> tuple[list[dict[str, Any]], list[str]]:
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
        # An address in the configuration may stand for the same stage of a later iteration.
        return (named[0].stage, named[0].qualifier) == (made.stage, made.qualifier)
    if phase_of(Address.parse(rollouts.address).qualifier) is None:
        return False
    first = next(iter(rollouts.inputs.get("checkpoint", ())), None)  # The policy's comes before those of helpers.
    return first is not None and first.artifact == checkpoint.outputs[CHECKPOINTS.kind]


def _card(
    run: Run,
    record: StageRecord,
    row: Mapping[str, Any],
    chain: Sequence[Origin],
    base: Base,
    scores: Sequence[Mapping[str, Any]],
) -> str:
    how = {"sft": "Fine-tuned", "rl": "Reinforced"}.get(record.stage, "Trained")
    head: dict[str, str | list[str]] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    head |= {"base_model": base.hub_id} if base.hub_id else {}
    head |= {"license": base.licence} if base.licence else {}
    head["tags"] = ["treadle", "agent", "tool-use"]
    parts = [
        front_matter(head),
        f"# {escape(run.run_id)} {escape(record.address)}",
        f"{how} from {escape(base.name)} by Treadle {escape(run.info.treadle_version)}: instance "
        f"{escape(record.address)} of run {escape(run.run_id)}, checkpoint "
        f"`{record.outputs[CHECKPOINTS.kind].digest}`. It writes tool calls between markers and continues after "
        "their results: a program that runs it must stop at a call, run the tool and insert the result. "
        "`export.json` contains everything below for programs.",
        render_figures([_training(row)]),
        "## Settings\n\n" + json_block(without_paths(record.settings)),
        *_scores_text(scores),
        origin_text(chain),
        _licence_text(base),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _training(row: Mapping[str, Any]) -> Figures:
    named = {
        "steps": row["num_steps"],
        "passes over the rows": f"{row['num_epochs']:g}",
        "rows": row["num_rows"],
        "tokens that count in the loss": row["num_target_tokens"],
        "first loss": _number(row["first_loss"]),
        "last loss": _number(row["last_loss"]),
        "mean reward at the first step": _number(row["first_reward"]),
        "mean reward at the last step": _number(row["last_reward"]),
        "exported step": row["chosen_step"],
        "correctness on held-out questions at this step": _number(row["validation_correctness"]),
        "weights": row["finetuning_type"],
        "engine": row["engine"],
        "seed": str(row["seed"]),
    }
    rows = tuple((name, value) for name, value in named.items() if value not in (None, ""))
    return Figures("Training", ("what", "value"), rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _scores_text(scores: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not scores:
        yield "## Scores\n\nThis run has no scores of this checkpoint."
        return
    rows = tuple(
        (
            row["model"],
            row["dataset"],
            FIGURES[row["figure"]].title,
            _number(row["value"]),
            "" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}",
            row["num_rollouts"],
        )
        for row in scores
    )
    header = ("instance", "data set", "figure", "value", "95 % interval", "rollouts")
    yield render_figures([Figures("Scores", header, rows, "By the questions, tools and scorers of this run.")])


def _licence_text(base: Base) -> str:
    known = f"Its licence is `{base.licence}`" if base.licence else "Its licence is unknown: look it up"
    return (
        f"## Licence\n\nThe weights derive from {escape(base.name)}. {known}. The data sets above have licences too, "
        "and so have the models that wrote or judged trajectories: check all of them before you share this model."
    )
