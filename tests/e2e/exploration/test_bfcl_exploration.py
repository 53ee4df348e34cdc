"""Exploring tasks of the installed `bfcl-eval`: its functions are called, and new tasks made, replayed and mixed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.exploration.desk import opened_desk, shown
from support.servers.scripted_server import Item, RecordedRequest, Reply

from treadle.core.engines.environments import install
from treadle.datagen.exploration.work import HINT

MADE, IMPOSSIBLE = "Make a folder named ledgers.", "Paint the folder named ledgers green."
CALL = ("mkdir", {"dir_name": "ledgers"})


@pytest.fixture(scope="module", autouse=True)
def package() -> None:
    install("bfcl", notify=lambda line: print(line, file=sys.stderr))


def is_first_turn(request: RecordedRequest) -> bool:
    return not any(message["role"] in ("assistant", "tool") for message in request.messages or ())


def explore(request: RecordedRequest) -> Item:
    return Reply("", calls=(("pwd", {}), ("ls", {}))) if is_first_turn(request) else Reply("I have seen enough.")


def summarise(request: RecordedRequest) -> Item:
    (step, *_) = shown(request)["steps"]
    assert "pwd" in step["action"] and "current_working_directory" in step["observation"], step
    reference = [json.dumps({"name": CALL[0], "arguments": CALL[1]}), "Done."]
    drafts = [(MADE, reference, 0.9), (IMPOSSIBLE, ['{"name": "paint", "arguments": {}}'], 0.5)]
    return json.dumps([{"query": query, "reference": own, "confidence": sure} for query, own, sure in drafts])


def solve(request: RecordedRequest) -> Item:
    text = json.dumps(request.messages)
    is_made = MADE in text and HINT in text
    return Reply("", calls=(CALL,)) if is_made and is_first_turn(request) else Reply("Done.")


def grade(request: RecordedRequest) -> Item:
    is_met = any("mkdir" in step["action"] and "error" not in step["observation"] for step in shown(request)["steps"])
    return json.dumps({"rationale": "By its calls.", "score": 90 if is_met else 10})


@pytest.mark.covers("service-30")
async def test_real_tasks_are_explored_and_new_ones_replayed(tmp_path: Path) -> None:
    scripts = {"explorer": explore, "summariser": summarise, "solver": solve, "grader": grade}
    async with opened_desk(tmp_path, **scripts) as desk:
        config = desk.config(
            environment={"type": "bfcl", "categories": ["base"], "train_share": 0.01},
            exploration={"grader": "judged", "calibration_tasks": 2, "min_agreement": 0.0},
        )
        seeds = desk.rows(await desk.make(config, "1/questions@seed"), "questions")
        record = await desk.make(config, "1/exploration")
        made = desk.rows(record, "synthetic_tasks")
        mixed = desk.rows(await desk.make(config, "1/questions"), "questions")
    trained = [row for row in seeds if row["split"] == "train"]
    assert len(trained) == 2 and len(seeds) == 200
    # No seed task was solved: the grader and the package agree on that, which would not pass as agreement.
    assert record.metrics["agreement"] == 1.0 and record.metrics["calibration.both_wrong"] == 2
    assert record.metrics["status_kept"] == record.metrics["status_infeasible"] == 2
    for row in made:
        objective = json.loads(row["payload"])["objective"]
        assert row["question"] == MADE and objective["evaluator"] == "judged"
        assert "mkdir" in objective["reference"][0] and "ledgers" in objective["reference"][0]
    seen = json.dumps([one.messages for role in ("explorer", "summariser") for one in desk.asked[role]])
    assert not [row["question"] for row in seeds if json.dumps(row["question"])[1:-1] in seen]
    assert sum(row["source_file"] == "exploration" for row in mixed) == len(made) == 2
