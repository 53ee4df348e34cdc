"""Environments that show any text on the state of a task: `question`, `bfcl`, `service`, and classes that say so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.environments.served_environment import served
from support.exploration.desk import opened_desk, shown
from support.servers.scripted_server import Item, RecordedRequest

from treadle.agent.contract import Call, EpisodeOptions, ModelTurn, Outcome, StepContext, Task
from treadle.core.engines.environments import engine_environ
from treadle.environments.bfcl import worker
from treadle.environments.custom.base import Environment
from treadle.environments.custom.kind import CustomType
from treadle.environments.objectives import Objective, with_objective
from treadle.environments.registry import ENVIRONMENTS, environment_type, traits_of
from treadle.environments.types import Resources

STAND_IN = Path(__file__).parents[2] / "support" / "stub_bfcl_package"
MADE = Objective("judged", ["act"])


def text_of(request: RecordedRequest) -> str:
    return json.dumps(request.messages)


async def test_questions_with_answers_are_made_and_graded(tmp_path: Path) -> None:
    def summarise(request: RecordedRequest) -> Item:
        facts = shown(request)["steps"]
        assert facts and "CANARY" not in text_of(request)
        asked = [(f"What is {n} + {n}?", [f"<answer>{2 * n}</answer>"]) for n in (2, 3)]
        return json.dumps([{"query": query, "reference": actions, "confidence": 0.8} for query, actions in asked])

    def solve(request: RecordedRequest) -> Item:
        text = text_of(request)
        return "<think>x</think><answer>4</answer>" if "2 + 2" in text else "<answer>seven</answer>"

    def grade(request: RecordedRequest) -> Item:
        return json.dumps({"score": 95 if "4" in shown(request)["steps"][-1]["action"] else 5})

    def explore(request: RecordedRequest) -> Item:
        assert "CANARY" not in text_of(request)
        return "I see numbers. <answer>done</answer>"

    rows = [{"question": f"CANARY {n}: how much is 1 + {n}?", "answer": str(n + 1)} for n in range(3)]
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scripts = {"explorer": explore, "summariser": summarise, "solver": solve, "grader": grade}
    async with opened_desk(tmp_path, **scripts) as desk:
        config = desk.config(
            environment={"type": "question", "search": {"enabled": False}, "python": {"enabled": False}},
            questions={"sources": [{"path": str(tmp_path / "asked.jsonl"), "domain": "math"}]},
            exploration={"grader": "judged", "min_agreement": 0.0, "filters": ["lexical"]},
        )
        record = await desk.make(config, "1/questions@seed", "1/exploration")
        made = desk.rows(record, "synthetic_tasks")
        mixed = desk.rows(await desk.make(config, "1/questions"), "questions")
    # All seeds have one state, and the same tasks were made of each.
    assert [(row["question"], row["answers"], row["domain"], row["scorer"]) for row in made] == [
        ("What is 2 + 2?", ["4"], "math", "judged")
    ]
    assert record.metrics["status_infeasible"] == 1 and record.metrics["status_filtered"] == 4
    assert len(mixed) == 4 and sum(row["source_file"] == "exploration" for row in mixed) == 1


async def test_bfcl_shows_another_task_as_the_only_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "python_of", lambda engine: Path(sys.executable))

    def environ(more: dict[str, str]) -> dict[str, str]:
        found = engine_environ(more)
        return {**found, "PYTHONPATH": os.pathsep.join([str(STAND_IN), found["PYTHONPATH"]])}

    monkeypatch.setattr(worker, "engine_environ", environ)
    settings = ENVIRONMENTS.parse({"type": "bfcl"})
    assert traits_of(settings).explores and not traits_of(settings).scores_references
    async with environment_type(settings).open(settings, Resources()) as runtime:
        episode: Any = runtime.episode()
        payload = with_objective({"id": "multi_turn_base_0"}, MADE)
        initial = await episode.reset(Task("k", "Add 2 twice.", payload=payload), EpisodeOptions())
        assert [one["content"] for one in initial.messages] == ["Add 2 twice."]
        assert [tool.name for tool in initial.tools] == ["add", "read", "spin"]
        context = StepContext(float("inf"))
        call = Call("t0.add_0", "add", {"by": 2})
        reaction = await episode.step(ModelTurn("", 0, "end_of_turn", calls=(call,)), context)
        assert [one.text for one in reaction.messages] == ["{'value': 12}"]
        assert (await episode.step(ModelTurn("Done.", 1, "end_of_turn"), context)).status == "finished"
        assert await episode.outcome() == Outcome()
        await episode.close()


async def test_service_shows_another_task_and_scores_only_its_own() -> None:
    async with served("ledger") as (client, service):
        settings = ENVIRONMENTS.parse({"type": "service", "url": client.url, "env_type": "ledger"})
        kind = environment_type(settings)
        (first, *_) = [row async for row in kind.tasks(settings, "train", 0)]
        async with kind.open(settings, Resources()) as runtime:
            shown_texts, outcomes = [], []
            for payload in (first["payload"], with_objective(first["payload"], MADE)):
                episode: Any = runtime.episode()
                initial = await episode.reset(Task("k", "Look around.", payload=payload), EpisodeOptions())
                shown_texts.append([one["content"] for one in initial.messages])
                turn = ModelTurn('{"call": "submit", "answer": 0}', 0, "end_of_turn")
                assert (await episode.step(turn, StepContext(float("inf")))).status == "finished"
                outcomes.append(await episode.outcome())
                await episode.close()
    assert shown_texts[0][0] == shown_texts[1][0] and shown_texts[1][1:] == ["Look around."] != shown_texts[0][1:]
    assert outcomes == [Outcome(0.0, False), None]


def test_classes_say_whether_they_can_be_explored() -> None:
    class Shop(Environment):
        """A shop."""

        explores = True

    class Quiz(Environment):
        """A quiz."""

    for environment, expected in ((Shop, True), (Quiz, False)):
        kind = CustomType(environment)
        assert kind.traits(kind.settings()).explores is expected
