"""The stage `pools` as a whole: rounds, operators, failures, time and budget, over real HTTP."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.pools_bench import TOKENIZER, PoolsBench
from support.scripted_server import Fault, Item, RecordedRequest, Reply, ScriptedServer

from treadle.agent.judges.base import Case, Verdict
from treadle.agent.memory import Memory
from treadle.core.errors import BudgetExceeded, ConfigError, EndpointUnavailable, RolloutsOwed, StageFailed

WRONG = "<think>I guess.</think><answer>\\boxed{Rome}</answer>"
RIGHT = "<think>I know it, it is the capital.</think><answer>\\boxed{Paris}</answer>"
OPERATORS_OF = {
    "correct": ("rerollout", "redundant_mod", "global_refine"),
    "incorrect": ("self_correct", "hint_step", "hint_tail"),
}


class Agent:
    """Plays all roles: each policy turn gets another text, and editors get what their prompts ask for.

    `answer` chooses the policy's text from the text of the request and its number among requests of its question.
    """

    def __init__(self, answer: Callable[[str, int], str]) -> None:
        self.answer = answer
        self.asked: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()

    def __call__(self, request: RecordedRequest) -> Item:
        task = self.task_of(request)
        if task == "preflight":
            return "x"
        self.asked[task] += 1
        if task == "policy":
            question = request.text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
            self.turns[question] += 1
            return self.answer(request.text, self.turns[question])
        if task == "locate":
            return "Step: 1\nAnalysis:"
        if task == "redundancy":
            number = self.asked[task]
            step = f"<think>Said in fewer words, {number}.</think><answer>\\boxed{{Paris}}</answer>"
            return f"Step: 1\nAnalysis: wordy.\nCorrected Step: {step}"
        if task == "refine":
            return f"K{self.asked[task]}.</think>"
        if task == "replace":
            return f"<think>Now I see {self.asked[task]}.</think><answer>\\boxed{{Paris}}</answer>"
        return "The step guesses."

    @staticmethod
    def task_of(request: RecordedRequest) -> str:
        """What a request asks for, told by its stop strings and its prompt."""
        stop = request.body.get("stop") or []
        if "Analysis:" in stop:
            return "locate"
        if "</think>" in stop:
            return "refine"
        if "#### Step" not in request.text:
            return "policy" if "</answer>" in stop else "preflight"
        if "Corrected Step:" in request.text:
            return "redundancy"
        return (
            "analyse"
            if request.text.rstrip().endswith("Analysis:") or "Analysis:" in request.text[-200:]
            else "replace"
        )


@contextmanager
def importable(folder: Path, name: str, source: str) -> Iterator[None]:
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)


def server(script: Any) -> ScriptedServer:
    return ScriptedServer(script, codec=TOKENIZER, max_model_len=32768)


@pytest.fixture
def bench(tmp_path: Path) -> PoolsBench:
    return PoolsBench(tmp_path, [{}])


def operators_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["operator"] for row in rows]


@pytest.mark.covers("flywheel-8")
@pytest.mark.parametrize(("branch", "text"), [("correct", RIGHT), ("incorrect", WRONG)])
async def test_a_parent_meets_exactly_the_operators_of_its_branch(bench: PoolsBench, branch: str, text: str) -> None:
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
    assert [made[name] for name in ("tried", "produced", "right", "turned_right")] == [3, 3, 3, 0]


async def test_all_unexpanded_trajectories_can_be_taken_up_in_a_round(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    async with server(agent) as scripted:
        record = await bench.make(
            scripted.url, options={"initial_rollouts": 3, "rounds": 2, "selection": "all", "operators": ["rerollout"]}
        )
    rows = bench.rows(record)
    assert [row["round"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({row["parents"][0] for row in rows[3:]}) == 6


async def test_rounds_end_when_nothing_new_comes_and_repetitions_are_not_kept(bench: PoolsBench) -> None:
    async with server(Agent(lambda _, turn: RIGHT)) as scripted:
        record = await bench.make(scripted.url, options={"operators": ["rerollout"], "rounds": 5})
    assert len(bench.rows(record)) == 1
    (event,) = bench.rows(record, "pool_events")
    assert (event["outcome"], event["rollout_key"]) == ("duplicate", bench.rows(record)[0]["rollout_key"])
    assert bench.rows(record, "pool_questions")[0]["num_rounds"] == 1


async def test_near_duplicates_are_dropped_where_asked_and_enough_is_enough(bench: PoolsBench) -> None:
    text = RIGHT.replace("it is", "as everybody knows who ever looked at a map of the country it is")
    async with server(Agent(lambda _, turn: text.replace("map", f"map{turn}"))) as scripted:
        options = {"operators": ["rerollout"], "rounds": 4}
        near = await bench.make(scripted.url, options={**options, "near_duplicate": 0.8})
        exact = await bench.make(scripted.url, options=options)
        enough = await bench.make(scripted.url, options={**options, "enough_correct": 2})
    assert [len(bench.rows(record)) for record in (near, exact, enough)] == [1, 5, 2]


@pytest.mark.covers("flywheel-22")
async def test_a_math_question_gets_math_hints_and_its_judge_is_asked_where_rules_cannot_tell(tmp_path: Path) -> None:
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


async def test_a_chat_only_service_judges_a_math_question(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("role", ["policy", "critic", "refiner"])
async def test_a_chat_only_service_is_refused_in_other_roles_before_anything_is_asked(
    bench: PoolsBench, role: str
) -> None:
    async with server(Agent(lambda _, __: RIGHT)) as scripted:
        with pytest.raises(ConfigError, match=f'models.{role}: api = "chat" .* this is the {role}') as refusal:
            await bench.make(scripted.url, roles={role: {"model": {"api": "chat"}}})
    assert "\n" not in str(refusal.value) and not scripted.requests


@pytest.mark.covers("flywheel-23")
async def test_an_operator_that_breaks_costs_only_itself(bench: PoolsBench, tmp_path: Path) -> None:
    source = (
        "class Broken:\n    name = 'broken'\n    version = 1\n    branch = 'correct'\n"
        "    async def apply(self, bench):\n        raise KeyError('no such thing')\n"
    )
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "broken_operator", source):
        async with server(agent) as scripted:
            operators = ["rerollout", "broken_operator:Broken", "global_refine"]
            record = await bench.make(scripted.url, options={"rounds": 1, "operators": operators})
    assert operators_of(bench.rows(record)) == ["initial", "rerollout", "global_refine"]
    (question,) = bench.rows(record, "pool_questions")
    assert question["status"] == "partial" and "broken" in question["error"] and "no such thing" in question["error"]
    event = bench.rows(record, "pool_events")[1]
    assert (event["operator"], event["outcome"], event["reason"]) == ("broken", "failed", "operator_error")
    assert event["parent"] == bench.rows(record)[0]["rollout_key"] and "KeyError" in event["error"]


MISBEHAVING = """
import asyncio
from treadle.datagen.operators.base import Edit, Rejected
class Operator:
    name, version, branch = "broken", 1, "correct"
class Forgets(Operator):
    async def apply(self, bench): return None
class Trajectory(Operator):
    async def apply(self, bench): return bench.trajectory
class Nothing(Operator):
    async def apply(self, bench): return Edit(None)
class Step(Operator):
    async def apply(self, bench): return Edit(bench.trajectory, step="two")
class Reply(Operator):
    async def apply(self, bench): raise Rejected("no", reply=bench)
class Cancelled(Operator):
    async def apply(self, bench): raise asyncio.CancelledError
class NotAwaitable(Operator):
    def apply(self, bench): return Edit(bench.trajectory)
"""


@pytest.mark.covers("flywheel-23")
@pytest.mark.parametrize("which", ["Forgets", "Trajectory", "Nothing", "Step", "Reply", "Cancelled", "NotAwaitable"])
async def test_an_operator_that_keeps_to_no_contract_costs_only_itself(
    bench: PoolsBench, tmp_path: Path, which: str
) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "misbehaving_operator", MISBEHAVING):
        async with server(agent) as scripted:
            operators = ["rerollout", f"misbehaving_operator:{which}"]
            record = await bench.make(scripted.url, options={"rounds": 1, "operators": operators})
    assert operators_of(bench.rows(record)) == ["initial", "rerollout"]
    event = bench.rows(record, "pool_events")[1]
    assert (event["operator"], event["outcome"], event["reason"]) == ("broken", "failed", "operator_error")
    assert bench.rows(record, "pool_questions")[0]["status"] == "partial"


WAITING = """
import asyncio
class Waiting:
    name, version, branch, cancelled = "waiting", 1, "correct", 0
    async def apply(self, bench):
        try:
            await asyncio.Event().wait()
        finally:
            Waiting.cancelled += 1
"""


@pytest.mark.covers("flywheel-24")
async def test_a_question_whose_time_is_up_keeps_what_was_finished(bench: PoolsBench, tmp_path: Path) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "waiting_operator", WAITING):
        async with server(agent) as scripted:
            operators = ["rerollout", "waiting_operator:Waiting"]
            record = await bench.make(scripted.url, options={"question_time_s": 1.5, "operators": operators})
        assert sys.modules["waiting_operator"].Waiting.cancelled == 1
    assert operators_of(bench.rows(record)) == ["initial", "rerollout"]
    (question,) = bench.rows(record, "pool_questions")
    assert question["status"] == "timeout" and "1.5 s" in question["error"] and question["num_rounds"] == 0
    events = [(event["operator"], event["outcome"], event["reason"]) for event in bench.rows(record, "pool_events")]
    assert events == [("rerollout", "produced", ""), ("waiting", "failed", "timeout")]


class JudgeThatGoes:
    """Knows one answer, then cannot be reached."""

    def __init__(self, **_: Any) -> None:
        self.num_asked = 0

    async def __aenter__(self) -> JudgeThatGoes:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def verdict(self, case: Case, memory: Memory) -> Verdict:
        self.num_asked += 1
        if self.num_asked > 1:
            raise EndpointUnavailable("no free slot before the deadline")
        return Verdict(True, 1.0, "qa_em")


async def test_a_judge_that_fails_after_the_time_of_a_question_does_not_make_it_owed(
    bench: PoolsBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.datagen.pools.AnswerJudge", JudgeThatGoes)
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    with importable(tmp_path, "waiting_operator", WAITING):
        async with server(agent) as scripted:
            options = {"question_time_s": 1.5, "operators": ["rerollout", "waiting_operator:Waiting"]}
            record = await bench.make(scripted.url, options=options)
    assert [row["correct"] for row in bench.rows(record)] == [True, None]
    assert bench.rows(record)[1]["judge"]["error"] == "no free slot before the deadline"
    assert bench.rows(record, "pool_questions")[0]["status"] == "timeout"


@pytest.mark.covers("flywheel-27")
async def test_an_endpoint_that_is_gone_leaves_questions_owed_then_accepted_with_what_there_is(
    tmp_path: Path,
) -> None:
    bench = PoolsBench(tmp_path, [{}, {"question": "Other?"}])
    agent = Agent(lambda _, turn: WRONG.replace("guess", f"guess {turn}"))
    critic_is_down = True

    def critic(request: RecordedRequest) -> Item:
        return Fault.status(500) if critic_is_down and request.body.get("stop") else agent(request)

    async with server(agent) as scripted, server(critic) as broken:
        urls = {**dict.fromkeys(("policy", "refiner", "judge"), scripted.url), "critic": broken.url}
        options = {"rounds": 1, "operators": ["self_correct", "hint_tail"]}
        with pytest.raises(RolloutsOwed, match="2 of 2 questions"):
            await bench.make(urls, options=options)
        before = agent.asked["policy"]
        with pytest.raises(StageFailed, match="max_error_rate"):
            await bench.make(urls, options=options, accept_failures=True)
        record = await bench.make(urls, options={**options, "max_error_rate": 1.0}, accept_failures=True)
    assert {question["status"] for question in bench.rows(record, "pool_questions")} == {"partial"}
    assert operators_of(bench.rows(record)) == ["initial", "hint_tail"] * 2
    failed = [event for event in bench.rows(record, "pool_events") if event["outcome"] == "failed"]
    assert {event["reason"] for event in failed} == {"llm_failed"}
    assert before == 4, "nothing is asked that the journal holds"


@pytest.mark.parametrize("domain", ["qa", "math"])
@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_accepted_unfinished_keeps_its_verdicts_and_its_branch(
    tmp_path: Path, domain: str, gone: bool
) -> None:
    bench = PoolsBench(tmp_path, [{"domain": domain}])
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}").replace("{Paris", "{The city of Paris"))

    def critic(request: RecordedRequest) -> Item:
        return Fault.status(500) if request.body.get("stop") else agent(request)

    async with server(agent) as scripted, server(lambda _: "Correct") as judge, server(critic) as broken:
        urls = {**dict.fromkeys(("policy", "refiner"), scripted.url), "judge": judge.url, "critic": broken.url}
        operators = ["rerollout", "redundant_mod", "hint_tail"]
        options = {"rounds": 1, "operators": operators, "max_error_rate": 1.0, "f1_threshold": 0.3}
        with pytest.raises(RolloutsOwed):
            await bench.make(urls, options=options)
        if gone:
            await broken.stop_listening()
            await judge.stop_listening()
        record = await bench.make(urls, options=options, accept_failures=True)
    rows, (question,) = bench.rows(record), bench.rows(record, "pool_questions")
    assert [(row["operator"], row["correct"]) for row in rows] == [("initial", True), ("rerollout", True)]
    assert (question["status"], question["num_correct"], question["initial_correct"]) == ("partial", 2, True)
    events = bench.rows(record, "pool_events")
    assert [(event["operator"], event["outcome"]) for event in events] == [
        ("rerollout", "produced"),
        ("redundant_mod", "failed"),
    ]


@pytest.mark.covers("flywheel-31")
async def test_a_resumed_stage_asks_nothing_again_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    texts = {number: RIGHT.replace("it", f"it {number}") for number in range(50)}

    def agent() -> Agent:
        def answer(text: str, turn: int) -> str:
            return texts[int.from_bytes(text.encode()[-9:], "big") % 50]

        return Agent(answer)

    digests = []
    for cut in (None, 5):
        bench = PoolsBench(tmp_path / str(cut), [{"question": f"Which {number}?"} for number in range(3)])
        script, served = agent(), Counter[str]()

        def counting(
            request: RecordedRequest, script: Agent = script, served: Counter[str] = served, cut: int | None = cut
        ) -> Item:
            if request.body.get("stop"):
                if cut is not None and served.total() >= cut and not served["open"]:
                    return Fault.status(500)
                served[f"{request.body['seed']} {request.text}"] += 1
            return script(request)

        async with server(counting) as scripted:
            options = {"rounds": 2, "operators": ["rerollout", "hint_tail"]}
            if cut is not None:
                with pytest.raises((RolloutsOwed, EndpointUnavailable)):
                    await bench.make(scripted.url, options=options)
                served["open"] = 1
            record = await bench.make(scripted.url, options=options)
        assert all(count == 1 for count in served.values())
        digests.append({kind: ref.digest for kind, ref in record.outputs.items()})
    assert digests[0] == digests[1]


async def test_the_budget_counts_what_unfinished_questions_have_in_the_journal(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    async with server(agent) as scripted:
        with pytest.raises(BudgetExceeded, match="max_total_tokens = 1500"):
            await bench.make(scripted.url, options={"max_total_tokens": 1500})
        asked = agent.asked.total()
        with pytest.raises(BudgetExceeded):
            await bench.make(scripted.url, options={"max_total_tokens": 1500})
        assert agent.asked.total() == asked, "a spent budget is noticed before anything is asked"
        record = await bench.make(scripted.url)
    assert record.metrics["status_ok"] == 1


@pytest.mark.covers("flywheel-31")
async def test_the_seed_decides_what_is_drawn(bench: PoolsBench) -> None:
    agent = Agent(lambda _, turn: WRONG.replace("guess", f"guess {turn}"))
    hints = set()
    async with server(agent) as scripted:
        for seed in range(8):
            record = await bench.make(scripted.url, seed=seed, options={"rounds": 1, "operators": ["hint_tail"]})
            hints.add(bench.rows(record)[1]["edit_text"])
    assert len(hints) > 2


@pytest.mark.covers("flywheel-32")
async def test_an_unknown_operator_and_a_wrong_prompt_stop_the_stage_before_anything_is_asked(
    bench: PoolsBench, tmp_path: Path
) -> None:
    agent = Agent(lambda _, turn: RIGHT)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "reflect.txt").write_text("?")
    async with server(agent) as scripted:
        with pytest.raises(ConfigError, match="'hint_middle' is not known; there are rerollout"):
            await bench.make(scripted.url, options={"operators": ["hint_middle"]})
        with pytest.raises(ConfigError, match=r"'reflect.txt', which replaces nothing"):
            await bench.make(scripted.url, options={"prompts": str(tmp_path / "prompts")})
    assert not agent.asked


async def test_two_roles_of_one_model_share_its_connection_pool(bench: PoolsBench) -> None:
    async with server(Agent(lambda _, turn: RIGHT)) as scripted:
        await bench.make(scripted.url, options={"rounds": 0})
        preflight = [request for request in scripted.requests if not request.body.get("stop")]
    assert len(preflight) == 1


async def test_a_reply_that_was_rejected_is_kept_with_its_reason(bench: PoolsBench) -> None:
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


async def test_what_a_shared_finding_came_to_nothing_for_is_counted_once(bench: PoolsBench) -> None:
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
