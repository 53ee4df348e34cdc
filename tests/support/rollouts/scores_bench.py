"""A run with questions and rollouts, and its `scores` instance with judges behind real HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from support.rollouts.pools_bench import FAST
from support.servers.scripted_server import Item, RecordedRequest, ScriptedServer
from support.tables.score_tables import new_run, put_rows

from treadle.core.config import load_config, merge
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ScoresSettings
from treadle.eval.entry import SCORES_STAGE

QUESTIONS_AT, ROLLOUTS_AT = Address.parse("1/questions"), Address.parse("1/rollouts@base")


class ScoresBench:
    """A run whose questions and rollouts are given."""

    def __init__(
        self, root: Path, questions: Sequence[Mapping[str, Any]], rollouts: Sequence[Mapping[str, Any]]
    ) -> None:
        self.run = new_run(root)
        put_rows(self.run, str(QUESTIONS_AT), QUESTIONS, questions)
        put_rows(self.run, str(ROLLOUTS_AT), ROLLOUTS, rollouts)

    async def score(
        self, settings: Mapping[str, Any], *, force: bool = False, accept_failures: bool = False
    ) -> StageRecord:
        """Run the stage."""
        instance = instance_of(settings)
        return await asyncio.to_thread(execute, instance, self.run, force=force, accept_failures=accept_failures)

    def rows(self, record: StageRecord, kind: str = "scores") -> list[dict[str, Any]]:
        """Rows of a table, JSON columns read."""
        return rows_of(self.run, record, kind)


def rows_of(run: Run, record: StageRecord, kind: str = "scores") -> list[dict[str, Any]]:
    rows = list(run.rows(record.outputs[kind]).rows())
    return [{**row, "judges": orjson.loads(row["judges"])} if kind == "scores" else row for row in rows]


def instance_of(settings: Mapping[str, Any]) -> Instance:
    return Instance(
        address=Address.parse("1/scores@base"),
        stage=SCORES_STAGE,
        settings=load_config(ScoresSettings, data=settings),
        inputs={"rollouts": (ROLLOUTS_AT,), "questions": (QUESTIONS_AT,)},
    )


def role(url: str, name: str = "judge", **model: Any) -> dict[str, Any]:
    """Return a model in a role, as the stage is given it."""
    return {
        "name": name,
        "model": {"model": name, "endpoints": [{"url": url}], **FAST, **model},
        "sampling": {"temperature": 0.0, "max_tokens": 16},
    }


def judged_by(judges: Mapping[str, str], options: Mapping[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """Return settings with judges of answers: name -> URL; `options` are merged into those of the stage."""
    base = {"symbolic": False, "pending_retries": 0, "pending_pause_s": 0.0, "judges": {"models": list(judges)}}
    roles = {name: role(url, name, **model) for name, url in judges.items()}
    return {"options": merge(base, dict(options or {})), "judges": roles, "judge_digests": ["d"]}


def voted_by(url: str, votes: int = 3, **options: Any) -> dict[str, Any]:
    """Return settings with a model that votes on wasted calls, and no judge of answers."""
    settings = judged_by({}, {"redundancy": {"model": "voter", "votes": votes}, **options})
    return {**settings, "redundancy": role(url, "voter")}


def server(script: Callable[[RecordedRequest], Item], model: str = "judge", **changes: Any) -> ScriptedServer:
    """Run a server with scripted replies to judge requests, and immediate replies to the preceding probe."""

    def reply(request: RecordedRequest) -> Item:
        return script(request) if request.messages else "."

    return ScriptedServer(reply, model=model, **changes)


def asked(scripted: ScriptedServer) -> list[RecordedRequest]:
    """Return the requests to judges, without probes."""
    return [request for request in scripted.requests if request.messages]


def predicted(request: RecordedRequest) -> str:
    """Return the answer that a judge is shown."""
    found = re.search(r"(?s)<predicted_\w+>\n(.*)\n</predicted_", request.text)
    assert found is not None
    return found[1]
