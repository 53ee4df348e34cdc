"""Build the sections on data and training: operator yields, fine-tuning, selection, reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.core.figures import Figures
from treadle.core.runs.records import StageRecord
from treadle.core.runs.reused import own_results
from treadle.report.page.charts import Yield, loss_chart, yields_chart
from treadle.report.page.document import Chart, Fold, Paragraph, Part, Section
from treadle.tasks.page.sources import PageRun
from treadle.tasks.summaries.stage_report import stage_report

_POOLS = (
    "Applications of operators and their results: an operator is worth its cost if many of its applications end "
    "as right trajectories."
)
_SFT = "The loss should fall quickly and level off; rows passed the quality gate, and their lengths show their cost."
_SELECTION = (
    "Each point is a question; those far from the origin have rollouts that disagree most in calls and in "
    "correctness. The method of the selection decides which of them are trained on."
)
_RL = (
    "Thin: each step; thick: the moving mean; red: held-out questions; dotted: the exported step. Reward "
    "and score should rise together; if only calls and length fall, answers got lazy."
)

_DPO = (
    "Blue: pairs in training; red: held-out pairs. Accuracy is the share of pairs in the right order. With scores per "
    "token the loss barely leaves 0.693: watch accuracy and margin."
)


def training_sections(sources: Sequence[PageRun]) -> list[Section]:
    """Return the sections on operators, selections, fine-tuning and reinforcement of which any run has a result."""
    makers = {
        ("pools", "Yield of operators", _POOLS, ("pools",)): _pool_parts,
        ("fronts", "Questions selected", _SELECTION, ("selection",)): _phase_parts,
        ("sft", "Fine-tuning", _SFT, ("sft_rows", "sft")): _sft_parts,
        ("rl", "Reinforcement", _RL, ("rl",)): _phase_parts,
        ("dpo", "Training on preferences", _DPO, ("dpo",)): _phase_parts,
    }
    sections = []
    for (name, title, reading, stages), make in makers.items():
        parts = [
            part
            for source in sources
            for stage in stages
            for record in own_results(source.of_stage(stage))
            for part in source.named_parts(make(source, record))
        ]
        sections += [Section(name, title, reading, parts)] if parts else []
    return sections


def _pool_parts(source: PageRun, record: StageRecord) -> list[Part]:
    report = stage_report(record, source.run)
    if report is None:
        return []
    operators = record.metrics["operators"]
    makers = [name for name in operators if "found" not in operators[name]]  # findings produce no trajectory
    yields = [
        Yield(name, *(operators[name].get(what, 0) for what in ("tried", "produced", "right")))
        for name in sorted(makers, key=lambda name: (name != "initial", name))
    ]
    charts: list[Part] = [yields_chart(_of(record, "Results of operators"), yields)] if yields else []
    shown = [one for one in report.figures if one.header[0] != "role"]  # tokens and cost are in the section on cost
    tables, reasons = _split(shown, "operator", "reason")
    return [*_texts(record, report.sentences), *charts, *tables, *_folded("Why operators produced nothing", reasons)]


def _sft_parts(source: PageRun, record: StageRecord) -> list[Part]:
    if record.stage == "sft_rows":
        report = stage_report(record, source.run)
        if report is None:
            return []
        return [*_texts(record, report.sentences), *_folded("Outcomes of the trajectories", report.figures)]
    metrics, parts = record.metrics, list[Part]()
    log = [step for step in source.telemetry(record, "training_log") if step["loss"] is not None]
    if {"steps", "rows", "first_loss", "last_loss"} <= metrics.keys():
        parts.append(
            Paragraph(
                f"{record.address}: {metrics['steps']:,} steps over {metrics['rows']:,} rows; loss "
                f"{metrics['first_loss']:.3f} at first, {metrics['last_loss']:.3f} at last."
            )
        )
    if log:
        losses = [step["loss"] for step in log]
        parts.append(loss_chart(_of(record, "Loss"), [step["step"] for step in log], losses))
    words = "Histograms of the length of rows and of the share of targets in them, and tokens by operator."
    return [*parts, *_picture(source, record, ("checkpoint", "rows.svg"), "Rows that were trained on", words)]


_PICTURES = {
    "selection": (
        ("rl_rows", "selection.svg"),
        "Questions",
        "Questions by the deviation of their calls and of their correctness, groups or numbers of the method, mean "
        "correctness.",
    ),
    "rl": (
        ("checkpoint", "curves.svg"),
        "Curves over the steps",
        "Reward, score, answers, calls, length, time-outs, unequal groups and parts of the reward over the steps.",
    ),
    "dpo": (
        ("checkpoint", "curves.svg"),
        "Curves over the steps",
        "Loss, accuracy and margin over the steps.",
    ),
}
"""Stage -> its picture: table and file, title, description."""


def _phase_parts(source: PageRun, record: StageRecord) -> list[Part]:
    report = stage_report(record, source.run)
    if report is None:
        return []
    picture = _picture(source, record, *_PICTURES[record.stage])
    return [*_texts(record, report.sentences), *picture, *map(_without_curve, report.figures)]


def _without_curve(figures: Figures) -> Figures:
    """Return the table without its text curve: the picture shows more."""
    if "curve" not in figures.header:
        return figures
    kept = [index for index, name in enumerate(figures.header) if name != "curve"]
    rows = tuple(tuple(row[index] for index in kept) for row in figures.rows)
    return replace(figures, header=tuple(figures.header[index] for index in kept), rows=rows)


def _picture(source: PageRun, record: StageRecord, where: tuple[str, str], title: str, words: str) -> list[Part]:
    """Return the picture that a stage drew, as the only part of a list; empty if there is none."""
    svg = source.file(record, *where)
    return [Chart(_of(record, title), words, svg)] if svg is not None else []


def _texts(record: StageRecord, sentences: Sequence[str]) -> list[Part]:
    return [Paragraph(f"{record.address}: {' '.join(sentences)}")] if sentences else []


def _of(record: StageRecord, title: str) -> str:
    return f"{title} ({record.address})"


def _split(figures: Sequence[Figures], first: str, folded: str) -> tuple[list[Figures], list[Figures]]:
    """Return the tables whose first column is `first` and which have no column `folded`, and all other tables."""
    shown = [one for one in figures if one.header[0] == first and folded not in one.header]
    return shown, [one for one in figures if one not in shown]


def _folded(summary: str, figures: Sequence[Figures]) -> list[Part]:
    shown = [one for one in figures if one.rows]
    return [Fold(summary, shown)] if shown else []
