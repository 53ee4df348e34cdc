"""Empty or nearly empty results: the stage fails, gives the cause and count, and leaves no record.

The rest of docs/behaviour/exits.md is tested with the stages themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.pools_agent import Agent
from support.rollouts.pools_agent import server as agent_server
from support.rollouts.pools_bench import PoolsBench
from support.rollouts.rollouts_bench import ANSWER, Bench
from support.rollouts.rollouts_bench import server as policy_server
from support.rollouts.scores_bench import ScoresBench, judged_by, server, voted_by
from support.servers.scripted_server import Fault, Item, RecordedRequest
from support.tables import rl_tables
from support.tables.pool_tables import make_rows
from support.tables.questions_bench import Bench as QuestionsBench
from support.tables.questions_bench import write_jsonl
from support.tables.score_tables import called, new_run, question, rollout

from treadle.core.errors import DataError, EngineError, StageFailed
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.stage import Instance
from treadle.core.tables import TABLES
from treadle.environments.question.index_entry import INDEX_STAGE
from treadle.eval.config import ReportSettings
from treadle.report.entry import REPORT_STAGE
from treadle.retriever.config import IndexSettings

UNEQUAL = "<think>I know.</think><answer>\\boxed{{{}}}</answer>"


def test_questions_all_contaminated_by_a_benchmark_fail(tmp_path: Path) -> None:
    made = QuestionsBench(tmp_path)
    rows = [{"question": f"Which river flows through {town}?", "answer": "Ilme"} for town in ("Vorna", "Tesk")]
    path, benchmark = write_jsonl(tmp_path / "q.jsonl", rows), write_jsonl(tmp_path / "b.jsonl", rows)
    with pytest.raises(StageFailed, match=r"no question is left of 2 rows \(contaminated 2\)"):
        made.take({"path": path, "domain": "qa"}, decontaminate=[{"path": benchmark, "dataset": "bench"}])
    assert made.run.record(Address(1, "questions")) is None


async def test_rollouts_with_only_empty_completions_fail(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ["a", "b"])
    says = ""
    async with policy_server(lambda _: says) as scripted:
        with pytest.raises(
            StageFailed, match=r"the model generated no text in any of 2 rollouts \(no_answer 2\); .*--force"
        ):
            await bench.make(scripted.url)
        assert bench.run.record(Address(1, "rollouts", "base")) is None
        says = ANSWER
        record = await asyncio.to_thread(execute, bench.instance(scripted.url), bench.run, force=True)
    assert record.metrics["status_answered"] == 2


async def test_pools_with_only_empty_completions_fail(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{}, {"question": "Other?"}])
    async with agent_server(Agent(lambda _, __: "")) as scripted:
        with pytest.raises(StageFailed, match=r"the model generated no text in any of \d+ trajectories \(no_answer"):
            await bench.make(scripted.url, options={"rounds": 1, "operators": []})
    assert bench.run.record(Address(1, "pools")) is None


async def test_pools_without_question_time_contain_no_trajectory(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{}])
    async with agent_server(lambda request: "x" if "\n" not in request.text else Fault("hang")) as scripted:
        with pytest.raises(
            StageFailed,
            match=r"no trajectory was made from 1 questions \(timeout 1\); first cause: the question's time",
        ):
            await bench.make(scripted.url, options={"question_time_s": 0.05})


def test_sft_rows_from_pools_without_trajectories_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    monkeypatch.setitem(TABLES, "pools", replace(TABLES["pools"], required=False))  # the stage itself makes no such
    with pytest.raises(StageFailed, match="the pools have no trajectories; check the result of the stage `pools`"):
        make_rows(tmp_path, [question("q1", ["1"])], [], run=run)
    assert run.record(Address(1, "sft_rows")) is None


async def test_pools_mostly_without_a_verdict_fail_unless_accepted(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{"domain": "math", "question": f"Number {n}?"} for n in range(3)])
    agent = Agent(lambda text, _: UNEQUAL.format("seven" if "Number 0?" in text else "eight"))

    def judge(request: RecordedRequest) -> Item:
        return "Incorrect" if "seven" in request.text else "well"

    async with agent_server(agent) as scripted, agent_server(judge) as judging:
        urls = {**dict.fromkeys(("policy", "refiner", "critic"), scripted.url), "judge": judging.url}
        options = {"rounds": 1, "initial_rollouts": 1, "operators": []}
        with pytest.raises(StageFailed, match=r"no verdict on 2 of 3 trajectories; .* neither Correct nor Incorrect"):
            await bench.make(urls, options=options)
        assert bench.run.record(Address(1, "pools")) is None
        record = await bench.make(urls, options=options, accept_failures=True)
    assert record.metrics["num_unknown_verdicts"] == 2


async def test_one_mostly_unreadable_judge_of_several_fails_the_stage(tmp_path: Path) -> None:
    answers = ["p", "q", "r"]
    rollouts = [
        rollout(f"r{n}", "m1", [("answer", f"<answer>{text}</answer>")], domain="math", sample_index=n)
        for n, text in enumerate(answers)
    ]
    made = ScoresBench(tmp_path, [question("m1", ["7"], "math")], rollouts)
    async with (
        server(lambda _: "Incorrect", "a") as first,
        server(lambda _: "Incorrect", "b") as second,
        server(lambda request: "Incorrect" if ">\np\n<" in request.text else "so so", "c") as third,
    ):
        urls = {"a": first.url, "b": second.url, "c": third.url}
        with pytest.raises(StageFailed, match=r"judge c gave no parsable reply for 2 of 3 answers"):
            await made.score(judged_by(urls))
        del urls["c"]
        record = await made.score(judged_by(urls))
    assert record.metrics["num_rollouts"] == 3


async def test_mostly_unreadable_votes_fail_the_stage(tmp_path: Path) -> None:
    segments = [("search", "<search>q</search>"), ("result", "<result>it</result>"), ("answer", "<answer>7</answer>")]
    row = rollout("r1", "m1", segments, domain="math", **called(search=1))
    made = ScoresBench(tmp_path, [question("m1", ["7"], "math")], [row])
    async with server(lambda _: "Certainly", "voter") as scripted:
        with pytest.raises(StageFailed, match=r"3 of 3 votes on wasted calls cannot be parsed"):
            await made.score(voted_by(scripted.url))
        assert made.run.record(Address(1, "scores", "base")) is None
        record = await made.score(voted_by(scripted.url), accept_failures=True)
    assert made.rows(record)[0]["votes_abstained"] == 3


async def test_rollouts_that_never_fit_the_window_fail(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ["a", "b"])
    async with policy_server() as scripted:
        with pytest.raises(StageFailed, match=r"no rollout fits the window of model base; raise models.base.max_model"):
            await bench.make(scripted.url, model={"max_model_len": 16})
    assert bench.run.record(Address(1, "rollouts", "base")) is None


async def test_pools_without_selected_questions_fail(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{}])
    with pytest.raises(StageFailed, match="no question is selected; check datasets, split and max_questions"):
        await bench.make("http://127.0.0.1:9/v1", options={"datasets": ["missing"]})


@pytest.mark.parametrize("scorer", ["workspace_tests", "outcome"])
async def test_pools_of_tasks_that_outcomes_decide_fail(tmp_path: Path, scorer: str) -> None:
    bench = PoolsBench(tmp_path, [{"scorer": scorer}])
    with pytest.raises(StageFailed, match=f"pools judges answers, but the scorer {scorer} decides about the tasks of"):
        await bench.make("http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("script", "said"),
    [({"at": 3, "do": "stop after 2"}, "ended after 2 of 6 steps"), ({"torn": 6}, "saved no state in 6 steps")],
)
def test_rl_that_ends_early_or_saves_nothing_fails(tmp_path: Path, script: dict[str, Any], said: str) -> None:
    run = rl_tables.run_with_rows(tmp_path / "root")
    with pytest.raises(EngineError, match=said):
        rl_tables.train(run, rl_tables.write_policy(tmp_path / "start"), script, save_steps=6)
    assert run.record(Address.parse(rl_tables.PLACE)) is None


def test_index_of_a_corpus_without_words_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "..."}\n')
    address, settings = Address(1, "index"), IndexSettings(corpus=(corpus,)).with_digests()
    with pytest.raises(DataError, match="no document of the corpus has an indexable word"):
        execute(Instance(address=address, stage=INDEX_STAGE, settings=settings), new_run(tmp_path / "root"))


def test_report_without_scores_fails(tmp_path: Path) -> None:
    instance = Instance(
        address=Address(1, "report"), stage=REPORT_STAGE, settings=ReportSettings(), inputs={"scores": ()}
    )
    with pytest.raises(StageFailed, match="1/report: there are no scores to report"):
        execute(instance, new_run(tmp_path))


async def test_rejects_pools_whose_judge_window_is_too_small_for_the_questions(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{"domain": "math"}])
    agent = Agent(lambda *_: UNEQUAL.format("seven"))

    def judge(request: RecordedRequest) -> Item:
        return Fault.too_long(64) if "seven" in request.text else "x"

    async with agent_server(agent) as scripted, agent_server(judge, max_model_len=1500) as judging:
        urls = {**dict.fromkeys(("policy", "refiner", "critic"), scripted.url), "judge": judging.url}
        with pytest.raises(StageFailed, match=r"no verdict on 1 of 1 trajectories; .* maximum context length"):
            await bench.make(urls, options={"rounds": 1, "operators": []})
