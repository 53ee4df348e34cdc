"""Declare the stage `sft_rows` to flows: rows are made from pools, or from scored rollouts of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from treadle.agent.contract import Task
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Stage, StageContext
from treadle.datagen.conversion.settings import ConversionOptions
from treadle.datagen.pools.entry import pool_models
from treadle.datagen.sft_rows.settings import SftRowsOptions, SftRowsSettings
from treadle.datagen.sft_rows.summary import sft_rows_report
from treadle.datagen.sft_rows.tables import SFT_REJECTIONS
from treadle.datagen.sft_rows.tables import SFT_ROWS as SFT_ROWS_TABLE
from treadle.datagen.texts.files import with_digest
from treadle.environments.registry import traits_of
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import checked_model, served_tokenizer, tokenizer_folder
from treadle.stages.plan import Plan

RowSource = Literal["pools", "rollouts", "conversion", "texts"]


def row_source(plan: Plan, address: Address) -> RowSource:
    """Return what the fine-tuning rows of an instance are made from.

    Raises ConfigError for pools of an environment whose tasks have no gold answers, and for texts that are not there.
    """
    options = plan.options(address, SftRowsOptions)
    wanted = options.trajectories
    if wanted == "texts" and not options.texts:
        raise ConfigError(f"{address}: sft_rows.trajectories = texts, but there are none; add [[sft_rows.texts]]")
    if wanted is None and "conversion" in plan.stages:
        return "conversion"
    if wanted is None and options.texts:
        return "texts"
    if wanted in ("conversion", "texts"):
        return wanted
    without = [one.type for one in plan.environments().values() if not traits_of(one).has_answers]
    if wanted == "pools" and without:
        raise ConfigError(
            f"{address}: sft_rows.trajectories = pools, but there are no pools of {without[0]}, whose "
            "tasks have no gold answers; leave the key out, then rows are made from rollouts"
        )
    return wanted or ("rollouts" if without else "pools")


def rolled_out_policy(plan: Plan, iteration: int) -> str | None:
    """Return the model whose rollouts become rows in an iteration, rewritten or not; None if no rollouts do."""
    if "conversion" in plan.stages and not plan.options(Address(iteration, "conversion"), ConversionOptions).texts:
        return _policy(plan, iteration)
    if "sft_rows" not in plan.stages or row_source(plan, Address(iteration, "sft_rows")) != "rollouts":
        return None
    return _policy(plan, iteration)


def _policy(plan: Plan, iteration: int) -> str:
    """Return the name of the model whose trajectories become rows: the policy of `pools`."""
    return pool_models(plan, Address(iteration, "pools"))["policy"]


def _text_settings(plan: Plan, address: Address, source: RowSource) -> SftRowsSettings:
    """Return the settings for rows of whole texts, which depend on no environment; the tokenizer is the student's."""
    options = plan.options(address, SftRowsOptions)
    folder, tokenizer_digest, context_tokens = options.tokenizer, "", None
    if folder is not None:
        from treadle.datagen.sft_rows.student import checked_student

        tokenizer_digest, context_tokens = checked_student(folder, {"the texts": [{"role": "user", "content": ""}]})
    elif plan.models:
        name = _policy(plan, address.iteration)
        model, tokenizer_digest = checked_model(name, plan.models[name])
        folder = tokenizer_folder(model) or served_tokenizer(model)
    if folder is None and "sft" in plan.stages:
        raise ConfigError(
            f"{address}: rows of whole texts need the tokenizer of the model that they train; set sft_rows.tokenizer "
            "to its folder, or to embedded"
        )
    texts = tuple(with_digest(one) for one in options.texts) if source == "texts" else ()
    return SftRowsSettings(
        tokenizer=folder,
        tokenizer_digest=tokenizer_digest,
        context_tokens=context_tokens,
        options=options.model_copy(update={"trajectories": source, "texts": texts}),
        seed=plan.seed,
    )


def _settings(plan: Plan, address: Address) -> SftRowsSettings:
    source = row_source(plan, address)
    if source in ("conversion", "texts"):
        return _text_settings(plan, address, source)
    name = _policy(plan, address.iteration)
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
    rollouts = Address(address.iteration, "rollouts", _policy(plan, address.iteration))
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
