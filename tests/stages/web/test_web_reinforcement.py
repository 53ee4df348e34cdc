"""A web that is recorded while rollouts are made, and replayed to the policy that is reinforced by them, in one run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, server
from support.servers.scripted_server import Item, RecordedRequest
from support.tables.rl_tables import OPTIONS, scripted, workspace_of, write_policy
from support.tables.score_tables import put_rows, score
from support.training.rewards import group_rewards
from support.training.scripted_groups import QUESTION, ScriptedGenerator, WordCodec, job
from support.web.web_entries import record_in, search_of
from support.web.web_rollouts import SmallWeb, recorded, said, searching

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.tools.outcome import NOT_ON_RECORD
from treadle.core.config import load_config
from treadle.core.errors import EngineError
from treadle.core.llm.config import Sampling
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.stage import Instance
from treadle.environments.question.settings import QuestionSettings
from treadle.eval.tables import SCORES
from treadle.rl.config import RlSettings
from treadle.rl.environment import ResidentEnvironments
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.batching import BatchedModel, BatchMembership
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.group import Group
from treadle.rl.selection.entry import SELECTION_STAGE
from treadle.rl.selection.settings import SelectionSettings
from treadle.rl.training.figures import step_figures
from treadle.rl.training.stage import RL_STAGE
from treadle.web.record.folder import open_record
from treadle.web.record.stored_entries import WEB_STORE, packed

FOUND = {"moss": {"/moss": "<p>Moss is green."}}
QUESTIONS = Address.parse("1/questions")
SELECTED = Address.parse("1/selection@phase-1")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the machine's cache, in which records are unpacked, to a folder of the test."""
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))


def search_once(request: RecordedRequest) -> Item:
    return ANSWER if "<result>" in said(request) else "<think>t</think><search>moss</search>"


def select(bench: Bench, record: StageRecord, environment: QuestionSettings) -> StageRecord:
    """Run the stage `selection` over real rollouts, one of each question being right."""
    scores = [
        score(row["rollout_key"], row["question_key"], row["sample_index"] % 2 == 0)
        | {name: row[name] for name in ("dataset", "domain", "model", "sample_index", "calls_executed")}
        for row in bench.rows(record)
    ]
    inputs = {
        "questions": (QUESTIONS,),
        "rollouts": (Address.parse(record.address),),
        "scores": (put_rows(bench.run, "1/scores@phase-1", SCORES, scores),),
    }
    settings = load_config(SelectionSettings, data={"phase": 1, "environment": environment.model_dump(mode="json")})
    return execute(Instance(address=SELECTED, stage=SELECTION_STAGE, settings=settings, inputs=inputs), bench.run)


def train(bench: Bench, start: Path, environment: dict[str, Any], **script: Any) -> StageRecord:
    options = {**OPTIONS, "start": str(start), "prompts_per_step": 1, "mini_batch_prompts": 1, "max_steps": 2}
    options |= {"validation_questions": 2, "validation_steps": 1}
    data = {"options": options, "environment": environment, "seed": 3}
    instance = Instance(
        address=Address.parse("1/rl@phase-1"),
        stage=RL_STAGE,
        settings=load_config(RlSettings, data=data),
        inputs={"rl_rows": (SELECTED,), "questions": (QUESTIONS,)},
    )
    with scripted(start.parent, **script):
        return execute(instance, bench.run)


def group_of(job_given: dict[str, Any]) -> Group:
    """Return a group as an engine makes it by its job: each trajectory searches what is on record, or what is not."""

    def say(context: str, seed: int) -> str:
        asked = "moss" if seed % 2 else "an unrecorded query"
        return (
            "<answer>42</answer>" if "<result>" in context.rpartition(QUESTION.text)[2] else f"<search>{asked}</search>"
        )

    settings, codec = QuestionSettings.model_validate(job_given["environments"]["default"]), WordCodec()
    with (
        ResidentEnvironments({"default": settings}) as resident,
        BatchedModel(ScriptedGenerator(codec, say), membership := BatchMembership()) as model,
    ):
        engine = resident.open["default"].engine(model, codec, Sampling())
        rollouts = resident.open["default"].groups(engine, Branching(8), vocab_size=10, membership=membership)
        (group,) = resident.run(require_groups(rollouts, [job(8)]))
    return group


async def test_recorded_web_rollouts_are_selected_and_trained_on_in_the_same_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, start = (
        Bench(tmp_path / "root", [f"Question {number}?" for number in range(8)]),
        write_policy(tmp_path / "start"),
    )
    known = record_in(tmp_path / "known", search_of("fern"))
    with SmallWeb(FOUND) as web:
        environment = {
            "system_prompt": "Answer.",
            "python": {"enabled": False},
            **searching(web.settings(recorded_in=str(known))),
        }
        async with server(search_once) as scripted_server:
            record = await bench.make(scripted_server.url, environment=environment, options={"samples_per_question": 4})
    given = QuestionSettings.model_validate(environment)
    selected = await asyncio.to_thread(select, bench, record, given)
    (digest,) = {row["environment_digest"] for row in bench.run.rows(selected.outputs["rl_rows"]).rows()}
    assert digest == given.digest()
    with pytest.raises(EngineError):
        await asyncio.to_thread(train, bench, start, environment, at=2, do="stop early")
    job_given = json.loads((workspace_of(bench.run) / "job.json").read_text())
    replayed = job_given["environments"]["default"]["search"]["web"]
    assert (replayed["mode"], job_given["plan"]["environment_digests"]) == ("replay", {"default": digest})
    with contextlib.closing(open_record(replayed["recorded_in"])) as record_met:
        kept = [entry.key for entry, _ in record_met.entries()]
    assert kept == sorted([search_of("fern").key, *(entry.key for entry in recorded(bench.run))])

    group = await asyncio.to_thread(group_of, job_given)
    calls = [call for made in group.trajectories for call in made.trajectory.calls]
    met = {(call.argument, call.status, call.note, call.text.partition('"context":')[2][:17]) for call in calls}
    assert met == {("moss", "ok", "", '"Moss is green."}'), ("an unrecorded query", "empty", NOT_ON_RECORD, "")}
    misses = [item.web_misses for item in group.items]
    assert misses == [int(call.argument != "moss") for call in calls] and 0 < sum(misses) < 8
    rewards = group_rewards(group.items, ["42"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
    assert step_figures([rewards])["web_misses"] == sum(misses) / 8

    # A started training does not use what the run recorded later.
    store = bench.run.store(WEB_STORE)
    later = search_of("later")
    store.add(later.key, packed(later))
    done = await asyncio.to_thread(train, bench, start, environment, web_misses=0.25, validation_misses=0.5)
    assert not Path(replayed["recorded_in"]).exists(), "it lies in the workspace of the training"
    assert (done.metrics["web_record"], done.metrics["web_misses"]) == (replayed["record_digest"], 2)
    assert "2 of 16 calls were searches that are not in the web record" in caplog.text
    told = pq.read_table(pa.BufferReader(bench.run.storage.get(done.telemetry["rl_validation"]) or b"")).to_pylist()
    assert [(row["domain"], row["web_misses"]) for row in told] == [("all", 0.5), ("qa", 0.5)]
    assert done.metrics["validation_web_misses"] == 1
    assert "1 of 2 calls in validation were searches that are not in the web record" in caplog.text
    report = bench.run.rows(done.outputs["checkpoint"]).read_file("report.md").decode()
    assert report.count("searches not on record") == 3, "while training, in validation, and of the policy handed over"
