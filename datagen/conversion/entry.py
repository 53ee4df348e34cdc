"""Declare the stage `conversion` to flows: its teacher, its tokenizer, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.conversion.jobs import target_dialect
from treadle.datagen.conversion.settings import ConversionOptions, ConversionSettings
from treadle.datagen.conversion.stage import CONVERSION_STAGE
from treadle.datagen.conversion.summary import conversion_report
from treadle.datagen.pools.entry import pool_models
from treadle.datagen.prompts import CONVERT, PromptSet
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.datagen.texts.files import with_digest
from treadle.stages.entry import Inputs, NamedModel, StageEntry
from treadle.stages.models import checked_model, checkpoints_of, role_of, served_tokenizer, tokenizer_folder
from treadle.stages.plan import Plan
from treadle.stages.tokenizers import load_tokenizer


def _settings(plan: Plan, address: Address) -> ConversionSettings:
    options = plan.options(address, ConversionOptions)
    name = _teacher(plan, address, options)
    target = plan.environment(options.environment)
    target_dialect(target, options.environment)
    folder, digest = _tokenizer(plan, address, options)
    mixture = {} if options.texts else plan.mixture()
    return ConversionSettings(
        teacher=role_of(name, plan.models[name], options.teacher.sampling),
        **mixture,
        options=options.model_copy(update={"texts": tuple(with_digest(one) for one in options.texts)}),
        target=target,
        prompt_digests=PromptSet(options.prompts, CONVERT, "conversion.prompts").digests(),
        tokenizer=folder,
        tokenizer_digest=digest,
        seed=plan.seed,
    )


def _teacher(plan: Plan, address: Address, options: ConversionOptions) -> str:
    name = options.teacher.model
    if name is None:
        raise ConfigError(f"{address}: no model rewrites; set conversion.teacher.model to one of [models]")
    if name not in plan.models:
        raise ConfigError(f"{address}: conversion.teacher.model names {name!r}, which is not under [models]")
    return name


def _tokenizer(plan: Plan, address: Address, options: ConversionOptions) -> tuple[Path | None, str]:
    """Return folder and digest of the tokenizer that counts tokens.

    Raises ConfigError if there is none, but `conversion.max_tokens` limits the tokens.
    """
    folder = options.tokenizer or plan.section("sft_rows", SftRowsOptions).tokenizer
    if folder is not None:
        return folder, load_tokenizer(folder).digest
    policy = pool_models(plan, replace(address, stage="pools"))["policy"]
    model, digest = checked_model(policy, plan.models[policy])
    folder = tokenizer_folder(model) or served_tokenizer(model)
    if folder is None and options.max_tokens is not None:
        raise ConfigError(
            f"{address}: no tokenizer counts the tokens of conversion.max_tokens; set conversion.tokenizer to the "
            "folder of the model to train, or to embedded"
        )
    return folder, digest


def _inputs(plan: Plan, address: Address) -> Inputs:
    options = plan.options(address, ConversionOptions)
    checkpoint = checkpoints_of(plan, (options.teacher.model,) if options.teacher.model in plan.models else ())
    if options.texts:
        return {"checkpoint": checkpoint}
    policy = pool_models(plan, replace(address, stage="pools"))["policy"]
    rollouts = Address(address.iteration, "rollouts", policy)
    return {
        "rollouts": (rollouts,),
        "scores": (replace(rollouts, stage="scores"),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": checkpoint,
    }


def _models(options: ConversionOptions) -> Iterator[NamedModel]:
    yield NamedModel("teacher.model", options.teacher.model)


CONVERSION = StageEntry(
    stage=CONVERSION_STAGE,
    table=ConversionOptions,
    settings=_settings,
    inputs=_inputs,
    models=_models,
    report=conversion_report,
    description="Let a teacher rewrite right trajectories as plans of parallel calls.",
    on_gpu=True,
)
