"""The stage `pools` over the questions of two environments, each with its own prompt, engine and digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rollouts.pools_agent import RIGHT, WRONG, Agent, server
from support.rollouts.pools_bench import PoolsBench
from support.servers.scripted_server import Fault, Item, RecordedRequest

from treadle.core.errors import DataError, JobsPending

PROMPT = "Answer like a pirate."
TWO = {"environments": {"brief": {"python": {"enabled": False}, "search": {"enabled": False}, "system_prompt": PROMPT}}}


def asked_of(bench: PoolsBench) -> dict[str, str]:
    """Return the digest of each environment."""
    named = bench.instance("http://127.0.0.1:9/v1", **TWO).settings.named_environments()
    return {name: one.digest() for name, one in named.items()}


async def test_each_question_is_evolved_in_its_environment(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{}, {"question": "Other?", "environment": "brief"}])
    agent = Agent(lambda _, turn: RIGHT.replace("it", f"it {turn}"))
    async with server(agent) as scripted:
        record = await bench.make(scripted.url, options={"rounds": 1, "operators": ["rerollout"]}, **TWO)
        texts = [request.text for request in scripted.requests if request.body.get("stop")]
    rows = bench.rows(record)
    assert {(row["question_key"], row["environment"]) for row in rows} == {("q00", "default"), ("q01", "brief")}
    digests = asked_of(bench)
    assert {(row["environment"], row["environment_digest"]) for row in rows} == set(digests.items())
    assert digests["default"] != digests["brief"]
    assert all((PROMPT in text) == ("Other?" in text) for text in texts) and any(PROMPT in text for text in texts)
    assert {row["operator"] for row in rows} == {"initial", "rerollout"}


async def test_unfinished_questions_are_replayed_in_their_environment(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{}, {"question": "Other?", "environment": "brief"}])
    agent = Agent(lambda _, turn: WRONG.replace("guess", f"guess {turn}"))

    def critic(request: RecordedRequest) -> Item:
        return Fault.status(500) if request.body.get("stop") else agent(request)

    async with server(agent) as scripted, server(critic) as broken:
        urls = {**dict.fromkeys(("policy", "refiner", "judge"), scripted.url), "critic": broken.url}
        options = {"rounds": 1, "operators": ["self_correct"], "max_error_rate": 1.0}
        with pytest.raises(JobsPending, match="2 of 2 questions"):
            await bench.make(urls, options=options, **TWO)
        before = agent.asked["policy"]
        record = await bench.make(urls, options=options, accept_failures=True, **TWO)
        assert agent.asked["policy"] == before, "replaying asks no model"
    rows = bench.rows(record)
    assert {(row["environment"], row["environment_digest"]) for row in rows} == set(asked_of(bench).items())
    assert {row["status"] for row in rows} == {"answered"}


async def test_other_environment_changes_no_job_of_a_question(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{}])
    alone, mixed = (bench.instance("http://127.0.0.1:9/v1", **more) for more in ({}, TWO))
    run_inputs = {"questions": [bench.run.rows(bench.run.record(alone.inputs["questions"][0]).outputs["questions"])]}
    jobs = alone.stage.jobs
    assert jobs is not None
    keys = [[job.key for job in jobs.of(one.settings, run_inputs)] for one in (alone, mixed)]
    assert keys[0] == keys[1]


async def test_question_of_an_unknown_environment_is_refused(tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, [{"environment": "brief"}])
    async with server(Agent(lambda _, turn: RIGHT)) as scripted:
        with pytest.raises(DataError, match=r"'brief', which this run does not have; there are default; add"):
            await bench.make(scripted.url)
        assert not scripted.requests
