"""Draw the curves of a training on preferences, and summarize it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.core.figures import Figures
from treadle.core.llm.config import ModelSettings
from treadle.core.plots import COLOUR, WARM, draw_svg
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.rl.dpo.tables import PAIR_LOG
from treadle.rl.preferences.left_out import left_out_sentences
from treadle.stages.report import StageReport, telemetry_rows

_PANELS = ("loss", "accuracy", "margin")


def draw_pair_curves(log: Sequence[Mapping[str, Any]]) -> bytes:
    """Return an SVG of loss, accuracy and margin over the steps, from rows of `pair_log`.

    Equal rows give equal bytes. Raises ConfigError without matplotlib.
    """

    def draw(figure: Any) -> None:
        for axes, name in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
            for split, colour in (("train", COLOUR), ("heldout", WARM)):
                points = [(row["step"], row[name]) for row in log if row["split"] == split and row[name] is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), color=colour, linewidth=1, marker=".", label=split)
            axes.set(title=name, xlabel="step")
            if axes.lines:
                axes.legend(frameon=False)

    return draw_svg(draw, width=10.0, height=2.8)


def dpo_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return a report with sentences about the training, a table of held-out pairs, and a row per step."""
    metrics = record.metrics
    sentences = [
        f"{metrics['steps']:,} steps over {metrics['rows']:,} pairs, scores by {metrics['aggregate']}; loss "
        f"{metrics['first_loss']:.4f} at first, {metrics['last_loss']:.4f} at last."
    ]
    if "held_out_pairs" in metrics:
        sentences.append(
            f"Of {metrics['held_out_pairs']:,} held-out pairs, {metrics['held_out_right']:,} are in the right order "
            f"({metrics['held_out_accuracy']:.1%}), with a mean margin of {metrics['held_out_margin']:.4g}."
        )
    sentences += left_out_sentences(metrics, "pairs")
    log = telemetry_rows(record, run, PAIR_LOG.kind)
    held_out = [row for row in log if row["split"] == "heldout"]
    rows = tuple(
        (f"{row['step']:,}", f"{row['loss']:.4f}", f"{row['accuracy']:.3f}", f"{row['margin']:.4g}") for row in held_out
    )
    figures = [Figures("Held-out pairs", ("step", "loss", "accuracy", "margin"), rows)] if rows else []
    steps = [{name: row[name] for name in ("step", *_PANELS)} for row in log if row["split"] == "train"]
    return StageReport(sentences, figures, steps)
