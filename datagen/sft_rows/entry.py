"""Declare the stage `sft_rows` to flows: rows are made from pools, or from scored rollouts of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from treadle.agent.contract import Task
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.datagen.sft_rows.row_source import policy_of, row_source
from treadle.datagen.sft_rows.settings import SftRowsOptions, SftRowsSettings
from treadle.datagen.sft_rows.summary import sft_rows_report
from treadle.datagen.sft_rows.tables import SFT_REJECTIONS
from treadle.datagen.sft_rows.tables import SFT_ROWS as SFT_ROWS_TABLE
from treadle.datagen.sft_rows.text_settings import text_settings
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import checked_model, served_tokenizer, tokenizer_folder
from treadle.stages.plan import Plan


def _settings(plan: Plan, address: Address) -> SftRowsSettings:
    source = row_source(plan, address)
    if source in ("conversion", "texts"):
        return text_settings(plan, address, source)
    name = policy_of(plan, address.iteration)
    model, tokenizer_digest = checked_model(name, plan.models[name])
    options = plan.options(address, SftRowsOptions)
    folder, context_tokens = tokenizer_folder(model) or served_tokenizer(model), None
    if options.tokenizer is not None:
        from treadle.datagen.sft_rows.student import checked_student

        folder = options.tokenizer
        prompts = {name: one.first_messages(Task("", "")) for name, one in plan.environments().items()}
        tokenizer_digest, context_tokens = checked_student(folder, prompts)
    elif folder is None and not model.continues_text and "sft" in plan.stages:
        raise ConfigError(
            f'{address}: the trajectories of models.{name} (api = "chat") have no token ids, so sft cannot train on '
            "rows of them; set sft_rows.tokenizer to the folder of the tokenizer of sft.model, or to embedded"
        )
    return SftRowsSettings(
        **plan.mixture(),
        tokenizer=folder,
        tokenizer_digest=tokenizer_digest,
        context_tokens=context_tokens,
        options=options.model_copy(update={"trajectories": source}),
        seed=plan.seed,
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    source = row_source(plan, address)
    if source == "texts":
        return {}
    if source == "conversion":
        return {"conversion": (replace(address, stage="conversion"),)}
    questions = {"questions": (Address(address.iteration, "questions"),)}
    if source == "pools":
        return {"pools": (replace(address, stage="pools"),), **questions}
    rollouts = Address(address.iteration, "rollouts", policy_of(plan, address.iteration))
    return {"rollouts": (rollouts,), "scores": (replace(rollouts, stage="scores"),), **questions}


def _run(context: StageContext) -> Mapping[str, Any]:
    if context.settings.options.trajectories in ("conversion", "texts"):
        from treadle.datagen.sft_rows.text_rows import run_text_rows

        return run_text_rows(context)
    from treadle.datagen.sft_rows.stage import run_sft_rows

    return run_sft_rows(context)


SFT_ROWS_STAGE = Stage(
    name="sft_rows",
    version=5,
    settings=SftRowsSettings,
    consumes={
        "pools": "pools",
        "rollouts": "rollouts",
        "scores": "scores",
        "questions": "questions",
        "conversion": "conversion",
    },
    optional=frozenset({"pools", "rollouts", "scores", "questions", "conversion"}),
    produces=(SFT_ROWS_TABLE, SFT_REJECTIONS),
    run=_run,
)
SFT_ROWS = StageEntry(
    stage=SFT_ROWS_STAGE,
    table=SftRowsOptions,
    settings=_settings,
    inputs=_inputs,
    report=sft_rows_report,
    description="Apply the quality gate to trajectories and write the fine-tuning rows.",
)
