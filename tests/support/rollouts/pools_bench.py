"""A run with questions, and its `pools` instance over real HTTP in any number of configurations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from support.tables.given_questions import GIVEN, TOKENIZER_FOLDER, give_questions

from treadle.core.config import load_config, merge
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.stage import POOLS_STAGE

FAST = {"retry_limit": 0, "backoff_base_s": 0.0, "outage_wait_s": 60.0, "probe_base_s": 0.05, "probe_max_s": 0.1}
ROLES = ("policy", "critic", "refiner", "judge")


class PoolsBench:
    """A run with questions."""

    def __init__(self, root: Path, questions: Sequence[Mapping[str, Any]]) -> None:
        self.run = Run.create(root, "r", {}, {})
        give_questions(self.run, questions)

    def instance(self, urls: str | Mapping[str, str | Sequence[str]], **changes: Any) -> Instance:
        """`urls`: of the one server, or role -> its own; `changes` are merged into the settings."""
        by_role = urls if isinstance(urls, Mapping) else dict.fromkeys(ROLES, urls)
        sampling = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1, "max_tokens": 512}
        roles = {
            role: {
                "name": role,
                "model": {
                    "model": "scripted",
                    "tokenizer": str(TOKENIZER_FOLDER),
                    "endpoints": [{"url": url} for url in ([at] if isinstance(at, str) else at)],
                    **FAST,
                },
                "sampling": sampling,
            }
            for role, at in by_role.items()
        }
        base = {
            "roles": roles,
            "environment": {"python": {"enabled": False}, "search": {"enabled": False}},
            "options": {"pending_retries": 0, "pending_pause_s": 0.0},
        }
        return Instance(
            address=Address.parse("1/pools"),
            stage=POOLS_STAGE,
            settings=load_config(PoolsSettings, data=merge(base, changes)),
            inputs={"questions": (GIVEN,)},
        )

    async def make(
        self, urls: str | Mapping[str, str | Sequence[str]], *, accept_failures: bool = False, **changes: Any
    ) -> StageRecord:
        """Run the stage."""
        instance = self.instance(urls, **changes)
        return await asyncio.to_thread(execute, instance, self.run, accept_failures=accept_failures)

    def rows(self, record: StageRecord, kind: str = "pools") -> list[dict[str, Any]]:
        """Rows of a table, JSON columns read."""
        rows = list(self.run.rows(record.outputs[kind]).rows())
        for row in rows:
            for column in ("segments", "tool_calls", "judge", "prompts", "models", "usage"):
                if isinstance(row.get(column), str):
                    row[column] = orjson.loads(row[column])
        return rows
