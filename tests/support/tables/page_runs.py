"""Small runs with all that a page of a report shows: scored models, pools, trainings, cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.tables.score_tables import called, put_rows, question, rollout, score

from treadle.core.config import Section
from treadle.core.plots import draw_svg
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import CHECKPOINTS, Table
from treadle.core.untrusted.sanitize import one_line
from treadle.datagen.pools.tables import POOL_EVENTS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS
from treadle.eval.config import ReportSettings
from treadle.eval.tables import SCORES
from treadle.report.entry import REPORT_STAGE
from treadle.sft.tables import TRAINING_LOG

NUM_QUESTIONS = 12
PRICED = {"prompt_price_per_million": 1_000.0, "completion_price_per_million": 2_000.0}


class Given(Section):
    """Settings that show through as those of a real stage do."""

    roles: dict[str, dict[str, str]] = {}
    judges: dict[str, dict[str, str]] = {}
    environment: dict[str, str] = {}
    options: dict[str, None] = {"datasets": None, "split": None}
    metrics: str = "{}"


def put_stage(
    run: Run,
    address: str,
    tables: Mapping[Table, Sequence[Mapping[str, Any]]],
    *,
    metrics: Mapping[str, Any],
    log: Mapping[Table, Sequence[Mapping[str, Any]]] | None = None,
    pictures: Mapping[str, bytes] | None = None,
    roles: Mapping[str, str] | None = None,
    judges: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    inputs: Mapping[str, Sequence[Address]] = MappingProxyType({}),
) -> Address:
    """Make an instance with these tables, metrics, logs, figures in the artifact of its first table, and models in its
    roles; `inputs` are added to the questions.
    """
    place = Address.parse(address)

    def make(context: StageContext) -> dict[str, Any]:
        for table, rows in tables.items():
            context.write(table.kind, rows)
        for name, content in (pictures or {}).items():
            context.add_file(next(iter(tables)).kind, name, content)
        for table, rows in (log or {}).items():
            context.write_telemetry(table.kind, rows)
        return dict(metrics)

    stage = Stage(
        name=place.stage,
        version=1,
        settings=Given,
        consumes={name: name for name in ("questions", *inputs)},
        produces=tuple(tables),
        run=make,
        telemetry=tuple(log or ()),
    )
    given = {role: {"name": name} for role, name in (roles or {}).items()}
    settings = Given(
        roles=given,
        judges={name: {} for name in judges},
        environment=dict(environment),
        metrics=json.dumps(dict(metrics)),
    )
    asked = {"questions": (Address.parse("1/questions"),), **{name: tuple(given) for name, given in inputs.items()}}
    execute(Instance(address=place, stage=stage, settings=settings, inputs=asked), run)
    return place


def evaluated_run(
    root: Path,
    name: str,
    models: Mapping[str, Sequence[bool | None]],
    *,
    text: str = "",
    datasets: Sequence[str] = (),
    headline: tuple[str, ...] = (),
    columns: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Run:
    """Make a run whose report has these models, given by their verdicts on the same questions; `text` is in every name.

    `columns` are added to all rows of a model.
    """
    run = Run.create(root, name, {"models": {"judge": _model("judge"), "policy": _model("policy", PRICED)}}, {})
    keys = [f"q{number}" for number in range(NUM_QUESTIONS)]
    _ask(run, keys, text)
    names = datasets or ("world",)
    tables = {
        model: [
            score(
                f"{model}-{key}",
                key,
                verdict,
                model=f"{model}{text}",
                dataset=f"{names[number % len(names)]}{text}",
                prediction=f"{model} says {text} {number}",
                status="answered" if verdict is not None else "length",
                **called(**({"search": number % 3} if number % 3 else {})),
                completion_tokens=10 + 7 * number,
            )
            | columns.get(model, {})
            for number, (key, verdict) in enumerate(zip(keys, verdicts, strict=False))
        ]
        for model, verdicts in models.items()
    }
    _evaluate(run, [Scored(rows) for rows in tables.values()], headline)
    return run


@dataclass(frozen=True)
class Scored:
    """A model's rows of `scores`, and what else its stages wrote down."""

    rows: Sequence[Mapping[str, Any]]
    times: Sequence[tuple[float, float, float] | None] = ()
    """Seconds of each rollout, in the model and in tools; None for one that nothing was measured of."""
    judges: Sequence[str] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Of `scores`."""
    segments: Sequence[tuple[str, str]] = ()
    """Of each rollout: kind and text."""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """Of each rollout."""
    call_times: Sequence[Mapping[str, Any]] = ()
    """Of each rollout."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Settings of its environment."""


def counted_run(root: Path, name: str, models: Sequence[Scored], *, headline: tuple[str, ...] = ()) -> Run:
    """Return a run whose report is about these rows of `scores`."""
    run = Run.create(root, name, {}, {})
    _ask(run, sorted({row["question_key"] for model in models for row in model.rows}))
    _evaluate(run, models, headline)
    return run


def _ask(run: Run, keys: Sequence[str], text: str = "") -> None:
    asked = [{**question(key, [f"answer {key} {text}"]), "question": f"what is {key}? {text}"} for key in keys]
    put_rows(run, "1/questions", QUESTIONS, asked)


def _evaluate(run: Run, models: Sequence[Scored], headline: tuple[str, ...]) -> None:
    """Rollouts with their times, scores and report."""
    inputs = []
    for place, model in enumerate(models):
        times = model.times or [(number / 2, number / 4, number / 8) for number in range(len(model.rows))]
        made = add_rollouts(
            run,
            place,
            [
                rollout(
                    row["rollout_key"],
                    row["question_key"],
                    model.segments,
                    tools=row["tools"],
                    model=row["model"],
                    tool_calls=json.dumps(list(model.tool_calls)),
                    num_turns=row["num_turns"],
                )
                for row in model.rows
            ],
            times,
            model.call_times,
            model.environment,
        )
        scored = put_stage(
            run,
            f"1/scores@model{place}",
            {SCORES: model.rows},
            metrics=model.metrics or _judged(place),
            judges=model.judges,
            inputs={"rollouts": (made,)},
        )
        inputs.append(scored)
    report = Instance(
        address=Address.parse("1/report"),
        stage=REPORT_STAGE,
        settings=ReportSettings(bootstrap_samples=100, headline=headline),
        inputs={"scores": tuple(inputs)},
    )
    execute(report, run)


def add_rollouts(
    run: Run,
    place: int,
    rows: Sequence[Mapping[str, Any]],
    times: Sequence[tuple[float, float, float] | None],
    call_times: Sequence[Mapping[str, Any]] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Address:
    """Rollouts of a model, in place of earlier ones; all made the calls of `call_times` if there are any."""
    by_tool = {"seconds_by_tool": _by_tool(rows[0]["tools"], sum(one["seconds"] for one in call_times))}
    added = {"call_times": list(call_times), **(by_tool if call_times else {})}
    log = {ROLLOUT_TELEMETRY: [{**row, **added} for row in _timed(rows, times)]}
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    return put_stage(
        run,
        f"1/rollouts@model{place}",
        {ROLLOUTS: rows},
        metrics={"rows": digest},
        log=log,
        environment=environment,
    )


def _timed(
    rows: Sequence[Mapping[str, Any]], times: Sequence[tuple[float, float, float] | None]
) -> Iterator[dict[str, Any]]:
    """Rows of `rollout_telemetry`; all calls of a rollout took equally long."""
    counts = (
        "num_requests",
        "num_retries",
        "summarizer_prompt_tokens",
        "summarizer_completion_tokens",
        "wasted_tokens",
    )
    for row, seconds in zip(rows, times, strict=True):
        if seconds is not None:
            yield {
                "rollout_key": row["rollout_key"], "attempt": 1, "finished_at": "", "endpoint": "",
                **dict(zip(("seconds", "model_seconds", "tool_seconds"), seconds, strict=True)),
                "seconds_by_tool": _by_tool(row["tools"], seconds[2]), "call_times": [],
                **dict.fromkeys(counts, 0), "turns": [], "num_restarts": 0, "voided_tokens": 0, "odd_answers": "{}",
            }  # fmt: skip


def _by_tool(tools: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    each = seconds / max(sum(calls["executed"] for calls in tools), 1)
    ran = [(calls["tool"], calls["executed"]) for calls in tools if calls["executed"]]
    return [{"tool": tool, "executed": executed, "seconds": each * executed} for tool, executed in ran]


def _judged(place: int) -> dict[str, Any]:
    """Metrics of scores of which the first had a judge."""
    used = {"calls": 3, "prompt_tokens": 2_000, "completion_tokens": 500}
    return {} if place else {"usage": {"correctness:policy": used}}


def _model(name: str, prices: Mapping[str, float] | None = None) -> dict[str, Any]:
    return {"model": f"served-{name}", "endpoints": [{"url": "http://127.0.0.1:9/v1"}], **(prices or {})}


def add_flywheel(run: Run, text: str = "") -> None:
    """Pools with operators and usage, a fine-tuning with its loss, a phase of reinforcement with its picture."""
    counts = {
        "tried": 9,
        "produced": 8,
        "right": 6,
        "rejected": 1,
        "corrected": 5,
        "calls_before": 9,
        "calls_after": 7,
    }
    used = {"calls": 40, "prompt_tokens": 5_000, "completion_tokens": 1_000}
    put_stage(
        run,
        "1/pools",
        {POOL_EVENTS: []},
        metrics={
            "num_questions": 9, "num_questions_correct_initially": 4, "num_questions_correct_finally": 7,
            "num_trajectories": 17, "num_correct": 10, "num_unknown_verdicts": 0, "calls_initial": 1.5,
            "calls_correct": 1.25, "status_ok": 9, "reasons": {f"hint{text}.empty{text}": 1},
            "operators": {"initial": {"tried": 9, "produced": 9, "right": 4}, f"hint{text}": counts},
            "usage": {"policy": used, "judge": {**used, "calls": 7}},
        },
        roles={"policy": "policy", "judge": "judge"},
    )  # fmt: skip
    put_stage(
        run,
        "1/sft",
        {CHECKPOINTS: [_checkpoint("1/sft", text)]},
        metrics={"steps": 4, "rows": 8, "first_loss": 2.0, "last_loss": 0.5},
        log={TRAINING_LOG: [_logged(step, 2.0 / step) for step in (1, 2, 3, 4)]},
        pictures={"rows.svg": _picture(f"rows {text}")},
    )
    put_stage(
        run,
        "1/rl@phase-1",
        {CHECKPOINTS: [_checkpoint("1/rl@phase-1", text)]},
        metrics={
            "steps": 3, "rows": 8, "engine": f"trl{text}", "rollouts": 24, "reward_rule": "outcome",
            "equal_groups": 1, "groups": 6, "chosen_step": 3,
        },
        pictures={"curves.svg": _picture(f"curves {text}")},
    )  # fmt: skip


def _picture(title: str) -> bytes:
    def draw(figure: Any) -> None:
        figure.subplots().set_title(one_line(title))

    return draw_svg(draw, width=4.0, height=2.0)


def _logged(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "epoch": step / 4, "loss": loss, "learning_rate": 1e-4, "grad_norm": None, "seconds": 1.0}


def _checkpoint(name: str, text: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "base_model": f"base{text}",
        "engine": f"engine{text}",
        "versions": '{"torch":"2"}',
    }
    for column in CHECKPOINTS.schema:
        row.setdefault(column.name, None if column.nullable else "" if str(column.type) == "string" else 1)
    return row
