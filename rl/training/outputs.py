"""Write the outputs of a finished RL training: checkpoint, rollouts, log, report and metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.core.runs.stage import StageContext
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.record import write_records
from treadle.rl.groups.dump import drawn_questions, read_steps, started_rollouts
from treadle.rl.training.curves import draw_curves
from treadle.rl.training.engine_rows import StoredRows
from treadle.rl.training.launch import Reinforcement, RlFolder
from treadle.rl.training.plan import RlPlan
from treadle.rl.training.report import (
    by_environment,
    engine_of,
    num_validation_misses,
    num_web_misses,
    record_metrics,
    render_report,
    turn_metrics,
)
from treadle.rl.training.tables import RL_LOG, RL_ROLLOUTS, RL_VALIDATION

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished training.

    Attributes:
        policy_in: Digest of the start policy.
        web_records: Name of an environment -> digest of the web record that it replayed.
        experience: Files of the pool that rollouts saw; None without a pool.
    """

    plan: RlPlan
    done: Reinforcement
    rows: StoredRows
    policy_in: str
    web_records: Mapping[str, str]
    experience: ExperienceFiles | None = None


def write_outputs(context: StageContext, folder: RlFolder, trained: Trained) -> dict[str, Any]:
    """Write all outputs of the stage and return the metrics."""
    plan, done, rows = trained.plan, trained.done, trained.rows
    context.write_telemetry(RL_LOG.kind, [step.as_row() for step in done.steps])
    context.write_telemetry(RL_VALIDATION.kind, [row for made in done.validations for row in made.as_rows()])
    num_turns = []
    for dumped in read_steps(folder.rollouts, done.num_steps):
        context.write(RL_ROLLOUTS.kind, dumped)
        num_turns += [row["num_turns"] for row in dumped if row["reward"] is not None]
    context.write(CHECKPOINTS.kind, [_checkpoint_row(trained)])
    counts = {"num_too_long": rows.num_too_long, "num_held_out": rows.num_held_out}
    report = render_report(plan, done, **counts, turns=turn_metrics(num_turns))
    curves = draw_curves(done.steps, done.validations, done.chosen_step, plan.options.reward_parts)
    context.add_file(CHECKPOINTS.kind, "curves.svg", curves)
    context.add_file(CHECKPOINTS.kind, "report.md", report.encode())
    if plan.options.dynamic_sampling:
        drawn = drawn_questions(folder.rollouts, done.num_steps)
        content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in drawn)
        context.add_file(CHECKPOINTS.kind, "draws.jsonl", content)
    if plan.options.oversample is not None:
        started = started_rollouts(folder.rollouts, done.num_steps)
        content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in started)
        context.add_file(CHECKPOINTS.kind, "started.jsonl", content)
    if trained.experience is not None:
        content = write_records(trained.experience.records(before_step=done.num_steps + 1))
        context.add_file(CHECKPOINTS.kind, "experience.jsonl", content)
    context.add_file(CHECKPOINTS.kind, "plan.json", plan.to_json().encode())
    metrics = record_metrics(plan, done, policy_in=trained.policy_in, num_too_long=rows.num_too_long)
    context.add_folder(CHECKPOINTS.kind, MODEL_FOLDER, done.model)
    metrics |= {"validation_too_long": rows.num_validation_too_long, **turn_metrics(num_turns)}
    return {**metrics, **_web_metrics(context, trained)}


def _checkpoint_row(trained: Trained) -> dict[str, Any]:
    plan, done = trained.plan, trained.done
    validation = done.chosen_validation
    return {
        **done.checkpoint_columns(),
        "name": plan.address,
        "base_model": plan.start,
        "base_digest": trained.policy_in,
        "finetuning_type": plan.options.finetuning_type,
        "num_rows": plan.num_rows,
        "num_target_tokens": None,
        "seed": plan.seed,
        "engine": engine_of(plan, done),
        "chosen_step": done.chosen_step,
        "first_reward": done.steps[0].reward,
        "last_reward": done.steps[-1].reward,
        "validation_correctness": validation.overall.score if validation else None,
    }


def _web_metrics(context: StageContext, trained: Trained) -> dict[str, Any]:
    """Return the digests of the replayed web records and the numbers of unanswered searches.

    Empty if no environment searches the web.
    """
    done, records = trained.done, trained.web_records
    if not records:
        return {}
    number, in_validation = num_web_misses(done.steps), num_validation_misses(done.validations)
    calls = sum((step.calls or 0.0) * step.num_rollouts for step in done.steps)
    validation_calls = sum((made.overall.calls or 0.0) * made.overall.num_questions for made in done.validations)
    for misses, of, where in ((number, calls, ""), (in_validation, validation_calls, " in validation")):
        if misses:
            _log.warning(
                "%s: %d of %d calls%s were searches that are not in the web record; the policy got the answer that "
                "nothing was found",
                context.address,
                misses,
                round(of),
                where,
            )
    facts = {**by_environment("web_record", records), "web_misses": number}
    return {**facts, "validation_web_misses": in_validation} if done.validations else facts
