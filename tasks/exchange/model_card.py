"""Write the card of an exported model: base, data, training, scores, licence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treadle.core.figures import Figures, escape, render_figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.tables import CHECKPOINTS
from treadle.eval.metrics import FIGURES
from treadle.tasks.exchange.artifact_origin import Origin, json_block, origin_text, without_paths
from treadle.tasks.exchange.base_model import Base
from treadle.tasks.exchange.dataset_export import front_matter


def model_card(
    run: Run,
    record: StageRecord,
    row: Mapping[str, Any],
    chain: Sequence[Origin],
    base: Base,
    scores: Sequence[Mapping[str, Any]],
) -> str:
    """Return the card in markdown. `row`: the checkpoint's row; `chain`: the artifacts that it was made from."""
    how = {"sft": "Fine-tuned", "rl": "Reinforced", "dpo": "Trained on preferences"}.get(record.stage, "Trained")
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
