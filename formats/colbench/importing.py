"""Import dialogues as the rollouts of a run, so that `scores` and training continue from them."""

from __future__ import annotations

from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.input_files import file_sha256
from treadle.environments.colbench.settings import ColbenchSettings
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.formats.colbench.import_job import DialogueImport, DialogueJob
from treadle.formats.colbench.rows import DialogueRows
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.exchange.policy_tokenizer import policy_tokenizer
from treadle.tasks.exchange.result_import import import_result


def import_dialogues(
    path: Path, config: TreadleConfig, run: Run, address: Address, *, force: bool = False
) -> tuple[StageRecord, DialogueImport]:
    """Import the dialogues of a file as the rollouts of an instance whose questions already exist.

    Rows that cannot be used are left out, also those whose task the stage itself would not use. Raises ConfigError for
    an instance of another stage or environment, DataError if no row can be used, and the errors of `import_result`.
    """
    wanted = instance(config, address)
    settings = wanted.settings
    if not isinstance(settings, RolloutsSettings):
        raise ConfigError(f"{address} makes no rollouts; name an instance such as 1/rollouts@base")
    environment = settings.environment
    if not isinstance(environment, ColbenchSettings):
        raise ConfigError(
            f'{address}: dialogues of ColBench need environment.type = "colbench/backend", not {environment.type!r}'
        )
    sha256 = file_sha256(path)
    rows = DialogueRows(environment, policy_tokenizer(settings.model), settings.model_name)
    job = DialogueJob(path, sha256, rows)
    return import_result(wanted, run, sha256, job.run, force=force), job.found
