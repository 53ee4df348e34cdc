"""Run the stage `rl`: train a policy for one phase on selected questions.

The training is in the stage's workspace, so a later attempt resumes from the newest complete state. Documented in
docs/behaviour/rl.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.core.runs.stage import Stage, StageContext
from treadle.core.tables import CHECKPOINTS
from treadle.rl.config import RlSettings
from treadle.rl.training.tables import RL_LOG, RL_ROLLOUTS, RL_VALIDATION

if TYPE_CHECKING:
    from treadle.rl.training.engine_rows import StoredRows
    from treadle.rl.training.plan import RlPlan

_log = logging.getLogger(__name__)


def run(context: StageContext) -> Mapping[str, Any]:
    """Train a policy for one phase, or resume its training; check it, write the outputs and return the metrics."""
    # Imported here, because the catalogue of stages is read by commands that train nothing.
    from treadle.rl.training.checkpoint_checks import check_exported
    from treadle.rl.training.engine_environments import check_environments, engine_environments
    from treadle.rl.training.engine_job import engine_job, engine_options
    from treadle.rl.training.engine_rows import store_experience, store_rows
    from treadle.rl.training.launch import Listener, RlFolder, reinforce
    from treadle.rl.training.outputs import Trained, write_outputs
    from treadle.rl.training.progress import RlProgress
    from treadle.rl.training.start_policy import find_start

    settings: RlSettings = context.settings
    options, folder, named = settings.options, RlFolder(context.workspace), settings.named_environments()
    check_environments(named)
    start = find_start(context, folder.start_commit)
    rows = store_rows(context, folder, start.tokenizer)
    plan = _plan(context, rows)
    experience = store_experience(context, folder)
    environments = engine_environments(
        {name: named[name] for name in plan.environment_digests}, context.store, folder.web
    )
    progress = RlProgress(context.progress, context.scratch, list(options.reward.PARTS)[:1])
    done = reinforce(
        folder,
        plan,
        engine_job(settings, start.folder, environments.settings, experience),
        engine_options(options, plan.machine),
        Listener(
            begin=progress.begin,
            step=progress.step,
            validation=progress.validation,
            live=progress.live,
            notify=_log.info,
        ),
    )
    check_exported(done, start.folder, start.tokenizer, moved_to=folder.refused, address=str(context.address))
    trained = Trained(
        plan=plan,
        done=done,
        rows=rows,
        policy_in=start.digest,
        web_records=environments.web_records,
        experience=experience,
    )
    return write_outputs(context, folder, trained)


def _plan(context: StageContext, rows: StoredRows) -> RlPlan:
    from treadle.core.engines.training import find_machine
    from treadle.rl.training.plan import plan_phase

    options = context.settings.options
    return plan_phase(
        context.settings,
        address=str(context.address),
        rows_digest=context.inputs["rl_rows"][0].digest,
        rows=rows.rows,
        validation_rows=rows.validation,
        machine=find_machine(options.engine, options, options.num_nodes),
    )


RL_STAGE = Stage(
    name="rl",
    version=6,
    settings=RlSettings,
    consumes={name: name for name in ("rl_rows", "questions", "checkpoint", "experience")},
    optional=frozenset({"questions", "checkpoint", "experience"}),
    produces=(CHECKPOINTS, RL_ROLLOUTS),
    telemetry=(RL_LOG, RL_VALIDATION),
    depends_on_address=True,
    run=run,
)
