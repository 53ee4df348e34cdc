"""Models explore books of the ledger and make tasks of them, which others solve; they are mixed with the originals."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.exploration.desk import (
    FAST,
    NUM_STEPS,
    THOUGHT,
    broken_after,
    explore,
    grade,
    opened_desk,
    shown,
    solve,
    summarise,
)
from support.servers.scripted_server import Fault, Item, RecordedRequest

from treadle.core.errors import BudgetExceeded, ConfigError, JobsPending, StageFailed
from treadle.environments.ledger.assignment import Assignment
from treadle.environments.ledger.book import Book
from treadle.environments.ledger.environment import solution_text
from treadle.tasks.catalog import flow_instances
from treadle.tasks.inspection.lineage import trace_back

HOLDER = re.compile(r"holder\W+(\w+)")
SEEDS, EXPLORATION = "1/questions@seed", "1/exploration"


def said(requests: list[RecordedRequest]) -> str:
    return json.dumps([one.messages for one in requests])


@pytest.mark.covers("service-29")
async def test_summary_with_several_tasks_yields_each_with_its_own_reference(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        config = desk.config()
        assert [str(one.address) for one in flow_instances(config)][:3] == [SEEDS, EXPLORATION, "1/questions"]
        seeds = desk.rows(await desk.make(config, SEEDS), "questions")
        record = await desk.make(config, EXPLORATION)
    objectives, tasks = desk.rows(record, "objectives"), desk.rows(record, "synthetic_tasks")
    metrics = record.metrics
    assert metrics["seed_tasks"] == metrics["explorations"] == 4 and metrics["steps"] == 4 * (NUM_STEPS + 1)
    # Per seed: two tasks about each of three accounts, all but one of each kind alike, and one without an effect.
    statuses = Counter(one["status"] for one in objectives)
    assert statuses == {"filtered": 4 * 4, "kept": 4 * 2, "ungraded": 4}
    assert {one["reason"] for one in objectives if one["status"] == "filtered"} == {"lexical"}
    assert len({one["query"] for one in objectives}) > 8
    for one in objectives:
        found = HOLDER.findall(one["drafted_reference"])
        assert (found[0] in one["query"]) if found else ("Teleport" in one["query"]), "it has the reference of another"
    by_query = {(one["seed_key"], one["query"]): one for one in objectives}
    for task in tasks:
        made = by_query[json.loads(task["meta"])["seed_key"], task["question"]]
        objective = json.loads(task["payload"])["objective"]
        # The reference is that of the rollout that solved it.
        solved = [f"{THOUGHT}\n{action}" for action in json.loads(made["drafted_reference"])]
        assert objective == {"evaluator": "env", "reference": solved} and json.loads(made["reference"]) == solved
        assert made["question_key"] == task["question_key"] and made["score"] == 1.0
        assert (task["split"], task["scorer"], task["answers"], task["environment"]) == ("train", None, [], "default")
    assert {json.loads(task["meta"])["seed_key"] for task in tasks} == {
        row["question_key"] for row in seeds if row["split"] == "train"
    }
    assert metrics["tokens.explorer.sampled"] > 0 and metrics["tokens.summariser.prompt"] > 0


async def test_neither_explorer_nor_summariser_see_the_seeds_query_and_held_out_tasks_are_not_explored(
    tmp_path: Path,
) -> None:
    async with opened_desk(tmp_path) as desk:
        config = desk.config(exploration={"grader": "judged", "min_agreement": 0.0, "explorations_per_task": 2})
        seeds = desk.rows(await desk.make(config, SEEDS), "questions")
        await desk.make(config, EXPLORATION)
    texts = [row["question"] for row in seeds]
    assert len(set(texts)) == 5 and desk.asked["explorer"] and desk.asked["summariser"]
    for role in ("explorer", "summariser"):
        assert not [text for text in texts if json.dumps(text)[1:-1] in said(desk.asked[role])], role
    # The solver does play the seed tasks, so that the grader can be compared.
    assert any(row["question"] in said(desk.asked["solver"]) for row in seeds if row["split"] == "train")
    held_out = next(row for row in seeds if row["split"] == "heldout")
    holders = {row["seed"] for row in [json.loads(held_out["payload"])]}
    assert held_out["question"] not in said(desk.asked["solver"]) and len(holders) == 1
    # The second exploration of a seed is told what the first one made.
    assert sum(bool(shown(one)["known"]) for one in desk.asked["summariser"]) == 4


async def test_mixture_keeps_held_out_originals_and_takes_the_wanted_share(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        made = {}
        for name, mixture in {
            "all": {},
            "half": {"synthetic": 0.5},
            "alone": {"originals": False},
            "again": {"synthetic": 0.5, "seed": 43},
        }.items():
            config = desk.config(questions={"mixture": mixture})
            record = await desk.make(config, SEEDS, EXPLORATION, "1/questions")
            made[name] = desk.rows(record, "questions")
    task = next(row for row in made["again"] if row["source_file"] == "exploration")
    lineage = [step.label.split() for step in trace_back(desk.run, task["question_key"])][:4]
    assert [words[0] for words in lineage] == ["source", "question", "source", "question"]
    assert lineage[1][1] == json.loads(task["meta"])["seed_key"] and lineage[3][1] == task["question_key"]
    kinds = {name: Counter((row["split"], row["source_file"]) for row in rows) for name, rows in made.items()}
    originals = {("train", "environment"): 4, ("heldout", "environment"): 1}
    assert kinds["all"] == originals | {("train", "exploration"): 8}
    assert kinds["half"] == originals | {("train", "exploration"): 2}
    assert kinds["alone"] == {("heldout", "environment"): 1, ("train", "exploration"): 8}
    chosen = {name: [row["question_key"] for row in made[name] if row["source_file"] == "exploration"] for name in made}
    assert chosen["half"] == [key for key in chosen["all"] if key in chosen["half"]] != chosen["again"]
    assert {row["dataset"] for row in made["alone"] if row["split"] == "train"} == {"ledger-explored"}


@pytest.mark.covers("service-30")
async def test_made_tasks_are_scored_by_their_reference_and_by_graders(tmp_path: Path) -> None:
    def right(request: RecordedRequest) -> Item:
        asked = (request.messages or [])[1]["content"]
        return _answers.get(asked, '{"call": "submit", "answer": 0}')

    _answers: dict[str, str] = {}
    async with opened_desk(tmp_path / "env") as desk:
        config = desk.config(rollouts={"split": "train"})
        rows = desk.rows(await desk.make(config, SEEDS, EXPLORATION, "1/questions"), "questions")
        for row in rows:
            if row["source_file"] == "exploration":
                _answers[row["question"]] = "\n".join(json.loads(row["payload"])["objective"]["reference"])
    async with opened_desk(tmp_path, desk.run, solver=right) as other:
        record = await other.make(other.config(rollouts={"split": "train"}), "1/rollouts@solver", "1/scores@solver")
        scores = other.rows(record, "scores")
    # Books of different seeds have holders of the same name, and the policy above knows only the text.
    texts = Counter(row["question"] for row in rows)
    made = {row["question_key"] for row in rows if row["source_file"] == "exploration" and texts[row["question"]] == 1}
    assert len(made) > 3
    assert {row["score"] for row in scores if row["question_key"] in made} == {1.0}
    assert {row["scorer"] for row in scores} == {"environment"}

    async with opened_desk(tmp_path / "judged") as desk:
        changes: dict[str, Any] = {"exploration": {"grader": "judged", "min_agreement": 0.0}}
        config = desk.config(**changes, questions={"mixture": {"originals": False}}, rollouts={"split": "train"})
        record = await desk.make(config, SEEDS, EXPLORATION, "1/questions", "1/rollouts@solver", "1/scores@solver")
        num_graded = len(desk.asked["grader"])
        scores = desk.rows(record, "scores")
        again = desk.config(**changes, questions={"mixture": {"originals": False}}, rollouts={"split": "train"})
        await desk.make(again, "1/scores@solver", force=True)
        assert len(desk.asked["grader"]) == num_graded, "replies of graders are paid for once"
    assert {(row["scorer"], row["score"]) for row in scores} == {("judged", 0.0)}
    assert json.loads(scores[0]["detail"])[0]["grade"] == 10


async def test_grader_that_contradicts_the_environment_stops_before_any_replay(tmp_path: Path) -> None:
    def fooled(request: RecordedRequest) -> str:
        return '{"rationale": "I believe it.", "score": 100}'

    async with opened_desk(tmp_path, grader=fooled) as desk:
        config = desk.config(exploration={"grader": "judged"})
        await desk.make(config, SEEDS)
        with pytest.raises(StageFailed, match=r"judged and the environment agree on 0% of 4 rollouts .* 0\.7"):
            await desk.make(config, EXPLORATION)
        assert len(desk.asked["solver"]) == 4, "only the seed tasks were played"


async def test_grader_is_not_trusted_if_the_environment_scored_all_seed_tasks_alike(tmp_path: Path) -> None:
    _answers: dict[str, str] = {}

    def solve_one(request: RecordedRequest) -> Item:
        return _answers.get((request.messages or [])[1]["content"]) or solve(request)

    async with opened_desk(tmp_path / "none") as desk:
        config = desk.config(exploration={"grader": "judged"})
        seeds = desk.rows(await desk.make(config, SEEDS), "questions")
        with pytest.raises(StageFailed, match=r"environment scored all 4 rollouts of seed tasks wrong, so .* \(100%\)"):
            await desk.make(config, EXPLORATION)
        assert len(desk.asked["solver"]) == 4, "only the seed tasks were played"
    solved = next(row for row in seeds if row["split"] == "train")
    solution = Assignment.make(json.loads(solved["payload"])["seed"])
    _answers[solved["question"]] = "\n".join(solution_text(solution))
    async with opened_desk(tmp_path / "one", solver=solve_one) as desk:
        record = await desk.make(desk.config(exploration={"grader": "judged"}), SEEDS, EXPLORATION)
        tasks = desk.rows(record, "synthetic_tasks")
    metrics = record.metrics
    assert (metrics["calibration.both_right"], metrics["calibration.both_wrong"]) == (1, 3)
    assert metrics["agreement"] == metrics["balanced_agreement"] == 1.0
    assert metrics["status_infeasible"] == 4 and {task["scorer"] for task in tasks} == {"judged"}


async def test_nothing_is_paid_twice_after_a_failure_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    twice = {"explorations_per_task": 2}
    async with opened_desk(tmp_path / "whole") as desk:
        config = desk.config(exploration=twice)
        whole = await desk.make(config, SEEDS, EXPLORATION)
        paid = {role: len(requests) for role, requests in desk.asked.items()}
    asked: Counter[str] = Counter()

    async def attempt(**scripts: Any) -> Any:
        async with opened_desk(tmp_path / "broken", run[0] if run else None, **scripts) as broken:
            run[:] = [broken.run]
            try:
                return await broken.make(broken.config(exploration=twice), SEEDS, EXPLORATION)
            except JobsPending:
                return None
            finally:
                asked.update({role: len(requests) for role, requests in broken.asked.items()})

    run: list[Any] = []
    assert await attempt(explorer=broken_after(explore, 22)) is None
    assert await attempt(summariser=broken_after(summarise, 2)) is None
    assert await attempt(solver=broken_after(solve, 10)) is None
    record = await attempt()
    assert record.outputs == whole.outputs
    assert asked == Counter(paid)


async def test_grades_of_seed_tasks_are_not_paid_for_again_if_the_grader_of_new_tasks_fails(tmp_path: Path) -> None:
    """Seed tasks may name a grader of their own, which the calibration asks before that of the new tasks."""
    own_tokens = 1000

    def is_of_seeds(request: RecordedRequest) -> bool:
        return own_tokens in (request.body.get("max_tokens"), request.body.get("max_completion_tokens"))

    def fails_on_made_tasks(request: RecordedRequest) -> Item:
        return grade(request) if is_of_seeds(request) else Fault.status(500)

    numbers, run = list[int](), None
    for grader in (fails_on_made_tasks, grade):
        async with opened_desk(tmp_path, run, grader=grader) as desk:
            run, url = desk.run, desk.servers["grader"].url
            model = {"model": "grader", "api": "chat", "endpoints": [{"url": url}], **FAST}
            config = desk.config(
                questions={"sources": [{"from": "environment", "scorer": "strict"}]},
                scorers={"strict": {"type": "llm", "model": model, "max_tokens": own_tokens}},
                exploration={"grader": "judged", "min_agreement": 0.0},
            )
            await desk.make(config, SEEDS)
            with contextlib.nullcontext() if numbers else pytest.raises(JobsPending):
                await desk.make(config, EXPLORATION)
            numbers.append(sum(map(is_of_seeds, desk.asked["grader"])))
    assert numbers == [4, 0]


async def test_budget_counts_earlier_attempts_and_all_roles(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:
        small = desk.config(exploration={"max_total_tokens": 2_000, "max_concurrent": 1})
        await desk.make(small, SEEDS)
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="max_total_tokens = 2000"):
                await desk.make(small, EXPLORATION)
        num_asked = sum(map(len, desk.asked.values()))
        assert 0 < num_asked < 10


async def test_unreadable_summaries_are_asked_for_again_and_then_given_up(tmp_path: Path) -> None:
    def mumble(request: RecordedRequest) -> str:
        return "Here are some tasks."

    async with opened_desk(tmp_path, summariser=mumble) as desk:
        config = desk.config(exploration={"attempts": 2})
        await desk.make(config, SEEDS)
        with pytest.raises(StageFailed, match=r"no task was made of 4 explorations .* cannot be read: 4"):
            await desk.make(config, EXPLORATION)
        assert len(desk.asked["summariser"]) == 2 * 4


async def test_strategies_filters_and_graders_of_users_work_as_shipped_ones_do(tmp_path: Path) -> None:
    own = "support.exploration.own_rules"
    async with opened_desk(tmp_path) as desk:
        config = desk.config(
            scorers={"cancels": {"type": f"{own}:Cancels"}},
            exploration={
                "strategy": {"type": f"{own}:OneAccount", "account": "A2", "max_steps": 2},
                "filters": [{"type": f"{own}:Without", "word": "Teleport"}],
                "grader": "cancels",
                "min_agreement": 0.0,
            },
        )
        record = await desk.make(config, SEEDS, EXPLORATION)
        tasks = desk.rows(record, "synthetic_tasks")
    assert "Look at A2 in Ledger." in said(desk.asked["explorer"]) and record.metrics["steps"] == 4 * 2
    # Each of two accounts that were seen has a task that cancels and one that does not.
    assert record.metrics[f"filter.{own}:Without"] == 4
    assert (record.metrics["status_kept"], record.metrics["status_infeasible"]) == (8, 8)
    assert record.metrics["agreement"] == 1.0 and {task["scorer"] for task in tasks} == {"cancels"}
    assert not desk.asked["grader"]


async def test_explorations_that_cannot_be_made_are_refused_before_the_run(tmp_path: Path) -> None:
    async with opened_desk(tmp_path) as desk:

        def refused(match: str, **changes: Any) -> None:
            with pytest.raises(ConfigError, match=match):
                flow_instances(desk.config(**changes))

        refused("solver are the same model", exploration={"roles": {"solver": {"model": "summariser"}}})
        refused("roles.explorer.model is not set", exploration={"roles": {"explorer": {"model": None}}})
        refused("grader llm-binary-gt has no model", exploration={"grader": "llm-binary-gt"})
        refused("scorer 'nobody' is unknown", exploration={"grader": "nobody"})
        refused("compares with gold answers", exploration={"grader": "qa"})
        refused("profiles has 'other'", exploration={"profiles": {"other": "x.toml"}})
        asked = {"path": str(tmp_path / "asked.jsonl"), "payload": ["secret"]}
        (tmp_path / "asked.jsonl").write_text('{"question": "Guess.", "secret": 3}\n')
        guess = {"type": "support.rollouts.dialogues:Guess"}
        refused(
            r"type '\S+:Guess', such as default, show only tasks of their own",
            environment=guess,
            questions={"sources": [asked]},
        )
        refused("cannot score the tasks that are made", environment={"type": "bfcl"})
    same = {"model": "solver", "api": "chat", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
    async with opened_desk(tmp_path / "two") as desk:
        with pytest.raises(ConfigError, match=r"same model \(summariser, solver\)"):
            flow_instances(desk.config(models={"summariser": same, "solver": same}))


def test_reference_of_the_ledger_is_scored_by_its_effect() -> None:
    seed = 7
    original = Assignment.make(seed)
    lines = [json.dumps({"call": name, **arguments}) for name, arguments in original.solution]
    made = Assignment.referenced(seed, "Do it.", ["I think.\n" + lines[0], *lines[1:]])
    assert made.solution == [tuple(one) for one in original.solution] and made.answer == original.answer
    assert Assignment.referenced(seed, "Wait.", ['{"call": "teleport"}']).score(Book.make(seed), None) is None
