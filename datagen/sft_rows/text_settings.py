"""Derive the settings of an instance whose rows are made from whole texts."""

from __future__ import annotations

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.sft_rows.row_source import RowSource, policy_of
from treadle.datagen.sft_rows.settings import SftRowsOptions, SftRowsSettings
from treadle.datagen.texts.files import with_digest
from treadle.stages.models import checked_model, served_tokenizer, tokenizer_folder
from treadle.stages.plan import Plan


def text_settings(plan: Plan, address: Address, source: RowSource) -> SftRowsSettings:
    """Return the settings for rows of whole texts, which depend on no environment.

    The tokenizer is that of `sft_rows.tokenizer`, or else the policy's.
    """
    options = plan.options(address, SftRowsOptions)
    folder, tokenizer_digest, context_tokens = options.tokenizer, "", None
    if folder is not None:
        from treadle.datagen.sft_rows.student import checked_student

        tokenizer_digest, context_tokens = checked_student(folder, {"the texts": [{"role": "user", "content": ""}]})
    elif plan.models:
        name = policy_of(plan, address.iteration)
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
