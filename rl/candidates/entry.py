"""Declare the stage `candidates` to flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.rl.candidates.figures import candidates_report
from treadle.rl.candidates.settings import CandidatesOptions, CandidatesSettings
from treadle.rl.preferences.entry import policy_checkpoint, policy_rollouts
from treadle.rl.preferences.tables import CANDIDATES as CANDIDATES_TABLE
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import checked_model
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> CandidatesSettings:
    from treadle.agent.model_sessions import check_trained

    sampled = plan.sampled(policy_rollouts(plan, address.iteration))
    model, tokenizer_digest = checked_model(sampled.name, sampled.model)
    check_trained(sampled.name, model)
    return CandidatesSettings(
        model_name=sampled.name,
        model=model,
        tokenizer_digest=tokenizer_digest,
        **plan.mixture(),
        options=plan.options(address, CandidatesOptions),
        seed=plan.seed,
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    return {
        "rollouts": (policy_rollouts(plan, address.iteration),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": policy_checkpoint(plan, address.iteration),
    }


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.rl.candidates.run import CandidatesRun

    return CandidatesRun(context).write()


def _work(context: StageContext) -> WorkResult:
    from treadle.core import steady_loop
    from treadle.rl.candidates.run import CandidatesRun

    return steady_loop.run(CandidatesRun(context).work())


CANDIDATES_STAGE = Stage(
    name="candidates",
    version=1,
    settings=CandidatesSettings,
    consumes={"rollouts": "rollouts", "questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(CANDIDATES_TABLE,),
    run=_run,
    work=_work,
)
CANDIDATES = StageEntry(
    stage=CANDIDATES_STAGE,
    table=CandidatesOptions,
    settings=_settings,
    inputs=_inputs,
    report=candidates_report,
    description="Sample alternatives for the turns of the policy's rollouts.",
    on_gpu=True,
)
