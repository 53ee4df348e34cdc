"""Place the trajectories of models in a plane by what they do: trajectories that act alike are near each other.

Follows the picture of the action space in ET-Agent (arXiv 2601.06860): ten trajectories per question are embedded and
placed by t-SNE.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import orjson
import pyarrow as pa

from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.config import validate
from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.core.store.text_arrays import one_of
from treadle.environments.mixture import environments_of
from treadle.report.action_space import draw_action_space
from treadle.report.radar import MAX_DRAWN
from treadle.retriever.config import EncoderSettings
from treadle.tasks.analysis.action_vectors import require_scikit_learn, tsne_points, vectors_of
from treadle.tasks.analysis.row_table import RowTable

NUM_QUESTIONS = 20
PER_QUESTION = 10
MAX_POINTS = 3_000
MIN_POINTS = 8
"""Minimum number of trajectories: fewer would show no groups."""
_CHOSEN_BY = ["rollout_key", "question_key", "dataset", "model", "sample_index", "status"]
_SCHEMA = pa.schema(
    [
        ("model", pa.string()), ("dataset", pa.string()), ("question_key", pa.string()), ("rollout_key", pa.string()),
        ("sample_index", pa.int32()), ("x", pa.float64()), ("y", pa.float64()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Rollouts to choose from; `prefix` and `suffix` make the names of their models unique in the picture."""

    rows: ArtifactReader
    prefix: str = ""
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """Trajectories as points in a plane.

    Attributes:
        points: A row per trajectory: `model`, `dataset`, `question_key`, `rollout_key`, `sample_index`, `x`, `y` (no
            unit: only nearness has a meaning).
        caption: What was drawn and how.
        models: Names of the models, in the order of their colours in the picture.
    """

    points: RowTable
    caption: str
    models: tuple[str, ...]

    @property
    def svg(self) -> bytes:
        """The picture: one colour and marker per model."""
        rows = self.points.arrow.to_pylist()
        return draw_action_space([(row["model"], row["x"], row["y"]) for row in rows], self.models)

    def __repr__(self) -> str:
        return f"<action space: {self.caption}>"

    def _repr_html_(self) -> str:
        # Scripts in an SVG do not run if it is embedded as an image.
        picture = base64.b64encode(self.svg).decode()
        words = escape(self.caption)
        return f'<img alt="{words}" src="data:image/svg+xml;base64,{picture}"><p>{words}</p>'


def action_space(
    tables: Sequence[RolloutTable],
    *,
    models: Sequence[str] | None = None,
    num_questions: int = NUM_QUESTIONS,
    per_question: int = PER_QUESTION,
    encoder: EncoderSettings | None = None,
    seed: int = 0,
) -> ActionSpace:
    """Choose trajectories of models on the same questions, and place them.

    Questions that the most models were asked are chosen first; among these, those with the most trajectories. At most
    `MAX_POINTS` trajectories are placed. Failed rollouts, and rollouts in which the model wrote nothing, are left out.
    Raises ConfigError for wrong bounds, unknown models or without scikit-learn, DataError for too few trajectories.
    """
    version = require_scikit_learn()
    most = MAX_POINTS // MAX_DRAWN
    if num_questions < 1 or not 1 <= per_question <= most:
        raise ConfigError(
            f"num_questions is {num_questions} and per_question {per_question}; both must be at least 1, and "
            f"per_question at most {most}"
        )
    found = [
        {**row, "model": f"{table.prefix}{row['model']}{table.suffix}", "table": place}
        for place, table in enumerate(tables)
        for batch in table.rows.batches(_CHOSEN_BY)
        for row in batch.to_pylist()
        if row["status"] != "failed"
    ]
    drawn = _drawn_models(list(dict.fromkeys(row["model"] for row in found)), models)
    chosen = _chosen([row for row in found if row["model"] in drawn], num_questions, per_question, drawn)
    with_actions = [(row, actions) for row, actions in _with_actions(chosen, tables) if actions]
    if len(with_actions) < MIN_POINTS:
        raise DataError(
            f"the action space needs at least {MIN_POINTS} trajectories that did something, and there are "
            f"{len(with_actions)}; raise rollouts.samples_per_question, or ask more questions"
        )
    vectors, how = vectors_of([actions for _, actions in with_actions], encoder, seed)
    places, perplexity = tsne_points(vectors, seed)
    rows = [
        {**{name: row[name] for name in _SCHEMA.names[:-2]}, "x": round(float(x), 3), "y": round(float(y), 3)}
        for (row, _), (x, y) in zip(with_actions, places, strict=True)
    ]
    asked = len({row["question_key"] for row in rows})
    caption = (
        f"{len(rows):,} trajectories: up to {per_question} per model for each of {asked:,} questions. Placed by t-SNE "
        f"(scikit-learn {version}, perplexity {perplexity:g}, seed {seed}) of {how}."
    )
    return ActionSpace(RowTable(pa.Table.from_pylist(rows, schema=_SCHEMA)), caption, tuple(drawn))


def configured_encoder(run: Run) -> EncoderSettings | None:
    """Return the encoder that a run searches with; None if it searches by words or not at all."""
    for settings in environments_of(run.readable_config()).values():
        search = (settings or {}).get("search") or {}
        if search.get("engine") in ("dense", "hybrid"):
            return encoder_of(search.get("encoder") or {})
    return None


def encoder_of(keys: Mapping[str, Any]) -> EncoderSettings:
    """Return the settings of an encoder, given as in `environment.search.encoder`; raise ConfigError."""
    return validate(EncoderSettings, keys)


def _drawn_models(known: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        if len(known) > MAX_DRAWN:
            raise ConfigError(
                f"{len(known)} models have rollouts, but only {MAX_DRAWN} can be distinguished; pass some as models: "
                f"{', '.join(known)}"
            )
        return list(known)
    if unknown := [model for model in wanted if model not in known]:
        raise ConfigError(f"no rollouts of {unknown[0]!r}; there are those of {', '.join(known) or 'no model'}")
    if len(wanted) > MAX_DRAWN:
        raise ConfigError(f"{len(wanted)} models are named, but only {MAX_DRAWN} can be distinguished")
    return list(dict.fromkeys(wanted))


def _chosen(
    rows: Sequence[dict[str, Any]], num_questions: int, per_question: int, models: Sequence[str]
) -> list[dict[str, Any]]:
    """Return at most `per_question` rows of each model on the chosen questions, by model, question and sample."""
    by_question: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        by_question.setdefault(row["question_key"], {}).setdefault(row["model"], []).append(row)

    def rank(key: str) -> tuple[int, int, str]:
        asked = by_question[key].values()
        # Keys are digests, so the choice among questions with equal counts is arbitrary but always the same.
        return -len(asked), -sum(min(per_question, len(found)) for found in asked), key

    room = max(1, MAX_POINTS // (per_question * max(1, len(models))))
    kept = sorted(by_question, key=rank)[: min(num_questions, room)]
    taken = [
        row
        for key in kept
        for found in by_question[key].values()
        for row in sorted(found, key=lambda one: (one["sample_index"], one["rollout_key"]))[:per_question]
    ]
    return sorted(taken, key=lambda row: models.index(row["model"]))


def _with_actions(
    chosen: Sequence[dict[str, Any]], tables: Sequence[RolloutTable]
) -> list[tuple[dict[str, Any], list[str]]]:
    """Return each row with what the model wrote: its thoughts, calls and answer, one text for each."""
    actions: dict[tuple[int, str], list[str]] = {}
    for place, table in enumerate(tables):
        keys = [row["rollout_key"] for row in chosen if row["table"] == place]
        for batch in table.rows.matching("rollout_key", one_of(keys), ["segments"]) if keys else ():
            for row in batch.to_pylist():
                own = (one for one in orjson.loads(row["segments"]) if one["kind"] not in SYSTEM_KINDS)
                actions[place, row["rollout_key"]] = [text for one in own if (text := one["text"].strip())]
    return [(row, actions.get((row["table"], row["rollout_key"]), [])) for row in chosen]
