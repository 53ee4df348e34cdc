"""The run's environment as an engine's process opens it: real sandbox and search, groups over a scripted generator."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from support.training.scripted_groups import QUESTION, ScriptedGenerator, WordCodec, job

from treadle.core.config import load_config
from treadle.core.errors import TreadleError
from treadle.core.llm.config import Sampling
from treadle.core.store.storage import LocalStorage
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.environment import ResidentEnvironments
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.batching import BatchedModel, BatchMembership
from treadle.rl.groups.branching import Branching
from treadle.rl.training.engine_environments import local_environment
from treadle.web.keys import search_key
from treadle.web.record.table import write_record
from treadle.web.types import SearchEntry, WebHit

PROGRAM = "<python>print(6 * 7)</python>"
QUERY = "<search>heron</search>"
FAULTY = "<python>print(unknown)</python>"


def environment(folder: Path) -> QuestionSettings:
    corpus = folder / "corpus.jsonl"
    lines = [
        {"id": "1", "contents": "The heron lives in Ostrava."},
        {"id": "2", "contents": "The otter lives in Brno."},
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    keys = {
        "max_total_calls": 2,
        "search": {"corpus": [str(corpus)], "cache_folder": str(folder), "top_n": 1},
        "python": {"sandbox": {"packages": [], "pool_size": 1}},
    }
    settings = load_config(QuestionSettings, data=keys)
    return settings.model_copy(update={"search": settings.search.with_digests()})


def reply(context: str, seed: int) -> str:
    turn = context.rpartition(QUESTION.text)[2]
    if turn.count("<result>") < 2:
        return (PROGRAM, QUERY, FAULTY)[seed % 3]
    return "<answer>42</answer>"


@pytest.mark.covers("pareto-26")
def test_groups_call_real_tools_from_a_synchronous_engine(tmp_path: Path) -> None:
    settings, codec, membership = environment(tmp_path), WordCodec(), BatchMembership()
    with (
        ResidentEnvironments({"default": settings}, interpreter=Path(sys.executable)) as resident,
        BatchedModel(ScriptedGenerator(codec, reply), membership) as model,
    ):
        engine = resident.open["default"].engine(model, codec, Sampling())
        rollouts = resident.open["default"].groups(engine, Branching(2, 2, 0.5), vocab_size=10, membership=membership)
        jobs = [job(4, seed, str(seed)) for seed in range(3)]
        groups = resident.run(require_groups(rollouts, jobs))
        again = resident.run(require_groups(rollouts, jobs[:1]))
    results = {
        (call.argument, call.status, call.text.splitlines()[-1])
        for group in groups
        for made in group.trajectories
        for call in made.trajectory.calls
    }
    assert results == {
        ("print(6 * 7)", "ok", "42"),
        ("heron", "ok", "The heron lives in Ostrava."),
        ("print(unknown)", "error", "NameError: name 'unknown' is not defined"),
    }
    items = [item for group in groups for item in group.items]
    assert [item.tool_calls for item in items] == [2] * 12
    assert {item.status for item in items} == {"answered"}
    assert [made.completion_ids for made in again[0].trajectories] == [
        made.completion_ids for made in groups[0].trajectories
    ]
    assert "environment" not in {thread.name for thread in threading.enumerate()}


def test_groups_search_a_recorded_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    found = SearchEntry(
        search_key("heron", "en"), "heron", "en", "p", (WebHit("t", "http://a.test", "In Ostrava."),), ""
    )
    record = tmp_path / write_record(LocalStorage(tmp_path), [(found, None)], made_by="test", work="work").folder
    keys = {
        "search": {"web": {"mode": "replay", "recorded_in": str(record), "pages": False}},
        "python": {"enabled": False},
    }
    settings = load_config(QuestionSettings, data=local_environment(load_config(QuestionSettings, data=keys)))

    def say(context: str, seed: int) -> str:
        return "<answer>42</answer>" if "<result>" in context.rpartition(QUESTION.text)[2] else QUERY

    codec, membership = WordCodec(), BatchMembership()
    with (
        ResidentEnvironments({"default": settings}) as resident,
        BatchedModel(ScriptedGenerator(codec, say), membership) as model,
    ):
        engine = resident.open["default"].engine(model, codec, Sampling())
        rollouts = resident.open["default"].groups(engine, Branching(2, 2, 0.5), vocab_size=10, membership=membership)
        (group,) = resident.run(require_groups(rollouts, [job(4, 0, "0")]))
    calls = [call for made in group.trajectories for call in made.trajectory.calls]
    assert {(call.argument, call.status, call.text) for call in calls} == {("heron", "ok", "Page 1: In Ostrava.")}
    assert {call.sources for call in calls} == {(found.key,)}


def test_tool_that_fails_to_open_raises_one_error(tmp_path: Path) -> None:
    settings = environment(tmp_path)
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(TreadleError, match=r"corpus\.jsonl"), ResidentEnvironments({"default": settings}):
        pass
    assert "environment" not in {thread.name for thread in threading.enumerate()}


def test_program_interpreter_is_not_part_of_the_digest(tmp_path: Path) -> None:
    settings = environment(tmp_path)
    given = settings.with_interpreter(Path("/usr/bin/python3"))
    assert given.python.sandbox.interpreter == Path("/usr/bin/python3")
    assert given.digest() == settings.digest()
    assert given.with_interpreter(Path("/opt/python")) == given
    assert settings.with_interpreter(None) == settings
