"""Write the rows that an engine trains and validates on, and their hidden payloads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.parquet as pq

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.training import write_rows
from treadle.core.errors import ConfigError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.environments.mixture import find_environment
from treadle.environments.registry import traits_of
from treadle.environments.scorers.registry import reads_all
from treadle.rl.config import RlSettings
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.record import Experience
from treadle.rl.training.launch import RlFolder
from treadle.rl.training.stored_rows import (
    PAYLOAD_SCHEMA,
    Fits,
    FittingRows,
    payload_batches,
    prompt_fits,
    rows_to_train_on,
    validation_questions,
)
from treadle.rl.verl.rows import TRAINING_SCHEMA, validation_rows

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Numbers of rows that were written, and of rows left out because of long prompts.

    Attributes:
        rows: Environment -> number of rows to train on.
        validation: Environment -> number of held-out questions to validate on.
        num_too_long: Number of rows left out.
        num_validation_too_long: Number of held-out questions left out.
        num_held_out: Number of all held-out questions.
    """

    rows: Mapping[str, int]
    validation: Mapping[str, int]
    num_too_long: int
    num_validation_too_long: int
    num_held_out: int


def store_rows(context: StageContext, folder: RlFolder, tokenizer: ChatTokenizer) -> StoredRows:
    """Write rows, held-out questions and payloads for the engine.

    Raises ConfigError if too few rows or held-out questions fit, and StageFailed if payloads are missing.
    """
    settings: RlSettings = context.settings
    fits = prompt_fits(settings.named_environments(), tokenizer, settings.options.max_prompt_tokens)
    rows = _store_training_rows(context, folder, fits)
    validation, num_held_out = _store_validation(context, folder, fits)
    _store_payloads(context, folder)
    return StoredRows(rows.counts, validation.counts, rows.num_too_long, validation.num_too_long, num_held_out)


def _store_training_rows(context: StageContext, folder: RlFolder, fits: Fits) -> FittingRows:
    options = context.settings.options
    rows = FittingRows(rows_to_train_on(context.inputs["rl_rows"]), fits)
    write_rows(folder.parquet, TRAINING_SCHEMA, rows.batches())
    if rows.num_too_long and rows.num_rows < options.prompts_per_step:
        raise ConfigError(
            f"{context.address}: {rows.num_too_long:,} of {rows.num_too_long + rows.num_rows:,} rows have prompts "
            f"longer than rl.max_prompt_tokens = {options.max_prompt_tokens}, and the {rows.num_rows} others are fewer "
            f"than rl.prompts_per_step = {options.prompts_per_step}; raise the former"
        )
    _warn_about_long_prompts(rows, "rows", options.max_prompt_tokens)
    return rows


def _store_validation(context: StageContext, folder: RlFolder, fits: Fits) -> tuple[FittingRows, int]:
    """Write the held-out questions if validation is enabled; return them and the number of all held-out ones."""
    settings: RlSettings = context.settings
    number, address = settings.options.validation_questions, context.address
    if not number:
        return FittingRows((), fits), 0
    chosen, num_held_out = validation_questions(context.inputs.get("questions", ()), number, settings.seed)
    if not chosen:
        raise ConfigError(
            f"{address}: rl.validation_questions = {number}, but there is no held-out question; let `questions` hold "
            "some out, or set it to 0"
        )
    if len(chosen) < number:
        _log.warning("%s: only %d held-out questions for rl.validation_questions = %d", address, len(chosen), number)
    rows, most = FittingRows([validation_rows(chosen)], fits), settings.options.max_prompt_tokens
    write_rows(folder.validation, TRAINING_SCHEMA, rows.batches())
    _warn_about_long_prompts(rows, "validation questions", most)
    if not rows.num_rows:
        raise ConfigError(
            f"{address}: all {len(chosen):,} validation questions have prompts longer than rl.max_prompt_tokens = "
            f"{most}; raise it, or set rl.validation_questions = 0"
        )
    return rows, num_held_out


def _store_payloads(context: StageContext, folder: RlFolder) -> None:
    """Write the payloads of the rows to a separate file, if episodes or scorers read payloads.

    The payload of a task is empty if neither its environment nor a user's scorer reads it.
    """
    settings: RlSettings = context.settings
    by_scorers = any(map(reads_all, settings.scorers.values()))
    environments = settings.named_environments()
    is_read: dict[str, bool] = {}
    for path in (folder.parquet, folder.validation):
        columns = ["question_key", "environment"]
        for row in pq.read_table(path, columns=columns, use_threads=False).to_pylist() if path.is_file() else ():
            environment = find_environment(environments, row["environment"])
            is_read[row["question_key"]] = by_scorers or traits_of(environment).reads_payload
    if not any(is_read.values()):
        return
    found = write_rows(folder.payloads, PAYLOAD_SCHEMA, payload_batches(context.inputs.get("questions", ()), is_read))
    if found != len(is_read):
        raise StageFailed(
            f"{context.address}: {len(is_read) - found:,} of {len(is_read):,} tasks to train on are not among the "
            "questions read; bind the questions that the rows were selected from"
        )


def store_experience(context: StageContext, folder: RlFolder) -> ExperienceFiles | None:
    """Write the pool of experience that the training begins with; return None if it has no pool."""
    settings: RlSettings = context.settings
    if settings.experience is None:
        return None
    files = ExperienceFiles(folder.experience, settings.experience)
    rows = (row for table in context.inputs.get("experience", ()) for row in table.rows())
    files.put_initial(Experience.from_json(row) for row in rows if row["status"] == "stored")
    return files


def _warn_about_long_prompts(rows: FittingRows, what: str, most: int) -> None:
    if rows.num_too_long:
        _log.warning(
            "%d of %d %s are left out: their prompts are longer than %d tokens (rl.max_prompt_tokens)",
            rows.num_too_long,
            rows.num_too_long + rows.num_rows,
            what,
            most,
        )
