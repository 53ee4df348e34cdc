"""The stage `pools` over real HTTP: rounds, operators, judges, and what is refused before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rollouts.pools_agent import RIGHT, WRONG, Agent, operators_of, server
from support.rollouts.pools_bench import PoolsBench
from support.servers.scripted_server import Item, RecordedRequest, Reply, ScriptedServer
from support.tables.given_questions import TOKENIZER

from treadle.core.errors import ConfigError

OPERATORS_OF = {
    "correct": ("rerollout", "redundant_mod", "global_refine"),
    "incorrect": ("self_correct", "hint_step", "hint_tail"),
}


@pytest.fixture
def bench(tmp_path: Path) -> PoolsBench:
    return PoolsBench(tmp_path, [{}])


@pytest.mark.covers("flywheel-8")
@pytest.mark.parametrize(("branch", "text"), [("correct", RIGHT), ("incorrect", WRONG)])
async def test_parent_gets_exactly_the_operators_of_its_branch(bench: PoolsBench, branch: str, text: str) -> None:
    agent = Agent(lambda _, turn: text.replace("think>I", f"think>{turn} I"))
    async with server(agent) as scripted:
        record = await bench.make(scripted.url, options={"rounds": 1})
    events = bench.rows(record, "pool_events")
    found = ["locate_flaw"] if branch == "incorrect" else []
    assert [event["operator"] for event in events] == [*found, *OPERATORS_OF[branch]]
    assert {event["parent_correct"] for event in events} == {branch == "correct"}
    assert agent.asked["locate"] == (branch == "incorrect")
    assert agent.asked["redundancy"] == (branch == "correct")


@pytest.mark.covers("flywheel-10")
async def test_three_productive_rounds_make_ten_trajectories_in_operator_order(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("I know it", f"After {turn} thoughts I am sure that I know it well"))
    async with server(agent) as scripted:
        record = await bench.make(scripted.url)
    rows, events = bench.rows(record), bench.rows(record, "pool_events")
    assert [event["outcome"] for event in events] == ["produced"] * 9, [e["reason"] for e in events]
    assert operators_of(rows) == ["initial", *OPERATORS_OF["correct"] * 3]
    assert [row["round"] for row in rows] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [row["sample_index"] for row in rows] == list(range(10))
    assert len({row["rollout_key"] for row in rows}) == 10
    assert {row["parents"][0] for row in rows[1:4]} == {rows[0]["rollout_key"]}
    made = record.metrics["operators"]["rerollout"]
    assert [made[name] for name in ("tried", "produced", "right", "corrected")] == [3, 3, 3, 0]


async def test_a_round_can_expand_all_unexpanded_trajectories(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    async with server(agent) as scripted:
        record = await bench.make(
            scripted.url, options={"initial_rollouts": 3, "rounds": 2, "selection": "all", "operators": ["rerollout"]}
        )
    rows = bench.rows(record)
    assert [row["round"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({row["parents"][0] for row in rows[3:]}) == 6


async def test_rounds_end_without_new_trajectories_and_duplicates_are_dropped(bench: PoolsBench) -> None:
    async with server(Agent(lambda _, turn: RIGHT)) as scripted:
        record = await bench.make(scripted.url, options={"operators": ["rerollout"], "rounds": 5})
    assert len(bench.rows(record)) == 1
    (event,) = bench.rows(record, "pool_events")
    assert (event["outcome"], event["rollout_key"]) == ("duplicate", bench.rows(record)[0]["rollout_key"])
    assert bench.rows(record, "pool_questions")[0]["num_rounds"] == 1


async def test_near_duplicates_are_dropped_if_configured_and_enough_correct_stops(bench: PoolsBench) -> None:
    text = RIGHT.replace("it is", "as everybody knows who ever looked at a map of the country it is")
    async with server(Agent(lambda _, turn: text.replace("map", f"map{turn}"))) as scripted:
        options = {"operators": ["rerollout"], "rounds": 4}
        near = await bench.make(scripted.url, options={**options, "near_duplicate": 0.8})
        exact = await bench.make(scripted.url, options=options)
        enough = await bench.make(scripted.url, options={**options, "enough_correct": 2})
    assert [len(bench.rows(record)) for record in (near, exact, enough)] == [1, 5, 2]


@pytest.mark.covers("flywheel-22")
async def test_math_question_gets_math_hints_and_a_judge_if_rules_are_undecided(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{"domain": "math", "dataset": "dapo", "answers": ["12"], "question": "6+6?"}])
    agent = Agent(lambda _, turn: f"<think>{turn}</think><answer>\\boxed{{{turn} apples}}</answer>")
    async with server(agent) as scripted, server(lambda _: "Incorrect") as judge:
        urls = {**dict.fromkeys(("policy", "critic", "refiner"), scripted.url), "judge": judge.url}
        record = await bench.make(urls, options={"rounds": 1, "operators": ["hint_tail"]})
        verdicts = [request for request in judge.requests if "12" in request.text]
    rows = bench.rows(record)
    assert operators_of(rows) == ["initial", "hint_tail"]
    assert "Python" in rows[1]["edit_text"] and rows[1]["edit_text"] in rows[1]["text"]
    assert [row["correct"] for row in rows] == [False, False]
    assert [row["judge"]["raw"] for row in rows] == [["Incorrect"], ["Incorrect"]]
    assert len(verdicts) == 2
    assert rows[0]["usage"]["judge"]["calls"] == 1


async def test_chat_only_service_can_judge_a_math_question(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{"domain": "math", "dataset": "dapo", "answers": ["12"], "question": "6+6?"}])
    agent = Agent(lambda _, turn: f"<think>{turn}</think><answer>\\boxed{{{turn} apples}}</answer>")
    async with (
        server(agent) as scripted,
        ScriptedServer(lambda _: "Incorrect", chat_only=True, codec=TOKENIZER, max_model_len=32768) as judge,
    ):
        urls = {**dict.fromkeys(("policy", "critic", "refiner"), scripted.url), "judge": judge.url}
        roles = {"judge": {"model": {"api": "chat"}}}
        record = await bench.make(urls, roles=roles, options={"rounds": 0})
    assert [row["judge"]["raw"] for row in bench.rows(record)] == [["Incorrect"]]
    assert [request.path for request in judge.requests] == ["/v1/chat/completions"] * 2
    assert "12" in judge.requests[1].text


@pytest.mark.covers("flywheel-31")
async def test_seed_determines_what_is_drawn(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: WRONG.replace("guess", f"guess {turn}"))
    hints = set()
    async with server(agent) as scripted:
        for seed in range(8):
            record = await bench.make(scripted.url, seed=seed, options={"rounds": 1, "operators": ["hint_tail"]})
            hints.add(bench.rows(record)[1]["edit_text"])
    assert len(hints) > 2


@pytest.mark.covers("flywheel-32")
async def test_unknown_operator_and_invalid_prompt_stop_the_stage_before_any_request(
    bench: PoolsBench, tmp_path: Path
) -> None:
    agent = Agent(lambda _, turn: RIGHT)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "reflect.txt").write_text("?")
    async with server(agent) as scripted:
        with pytest.raises(ConfigError, match="unknown operator 'hint_middle'; known: rerollout"):
            await bench.make(scripted.url, options={"operators": ["hint_middle"]})
        with pytest.raises(ConfigError, match=r"'reflect.txt', which is not a prompt file"):
            await bench.make(scripted.url, options={"prompts": str(tmp_path / "prompts")})
    assert not agent.asked


async def test_two_roles_of_one_model_share_its_connection_pool(bench: PoolsBench) -> None:
    async with server(Agent(lambda _, turn: RIGHT)) as scripted:
        await bench.make(scripted.url, options={"rounds": 0})
        preflight = [request for request in scripted.requests if not request.body.get("stop")]
    assert len(preflight) == 1


async def test_rejected_reply_is_kept_with_its_reason(bench: PoolsBench) -> None:
    def script(request: RecordedRequest) -> Item:
        if Agent.task_of(request) == "redundancy":
            return Reply("I would rather talk about the weather.")
        return RIGHT

    async with server(script) as scripted:
        record = await bench.make(scripted.url, options={"rounds": 1, "operators": ["redundant_mod"]})
    (event,) = bench.rows(record, "pool_events")
    assert event["outcome"] == "rejected" and event["reason"]
    assert event["reply"] == "I would rather talk about the weather."
    assert record.metrics["reasons"] == {f"redundant_mod.{event['reason']}": 1}


async def test_shared_fault_location_without_a_result_is_counted_once(bench: PoolsBench) -> None:
    def script(request: RecordedRequest) -> Item:
        return "I cannot tell." if Agent.task_of(request) == "locate" else WRONG

    async with server(script) as scripted:
        operators = ["self_correct", "hint_step"]
        record = await bench.make(scripted.url, options={"rounds": 1, "operators": operators})
    events = bench.rows(record, "pool_events")
    assert [(event["operator"], event["outcome"]) for event in events] == [
        (name, "rejected") for name in ("locate_flaw", *operators)
    ]
    (reason,) = {event["reason"] for event in events}
    assert record.metrics["reasons"] == {f"locate_flaw.{reason}": 1}
