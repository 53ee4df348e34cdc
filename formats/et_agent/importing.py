"""Import results of another program as the result of a stage, so that later stages continue from them.

The record has the fingerprint that the stage itself would produce, so the instance is not run again. The record's
metrics, the artifact (`imported.json`) and its rows state that it was imported, and from which content.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.untrusted.input_files import file_sha256
from treadle.formats.et_agent.import_job import ImportJob
from treadle.formats.et_agent.import_result import ImportResult
from treadle.formats.et_agent.records import ImportKind
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.exchange.result_import import import_result


def import_records(
    path: Path, kind: ImportKind, config: TreadleConfig, run: Run, address: Address, *, force: bool = False
) -> tuple[StageRecord, ImportResult]:
    """Import the rows of a file as the result of a stage instance whose questions already exist.

    Rows that cannot be used are left out, including those whose question the stage itself would not use. Raises
    RunError if there is another result or unfinished work (both unless `force`), or if other processes work on its
    shards; DataError if no row can be used; and the errors of `execute`.
    """
    wanted = instance(config, address)
    if wanted.stage.name != kind:
        raise ConfigError(f"{address} makes no {kind}; name an instance such as {_EXAMPLES[kind]}")
    sha256 = file_sha256(path)
    job = ImportJob(path, kind, sha256, config, wanted)
    record = import_result(wanted, run, sha256, job.run, force=force)
    return record, job.found


_EXAMPLES: Mapping[ImportKind, str] = {"pools": "1/pools", "rollouts": "1/rollouts@base or 1/rollouts@phase-1"}
