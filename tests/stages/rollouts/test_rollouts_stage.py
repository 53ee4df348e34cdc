"""The stage `rollouts` over real HTTP, with real journal, artifacts and tools: what it makes, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.rollouts_bench import ANSWER, Bench, corpus, server, work_requests
from support.servers.scripted_server import Item, RecordedRequest, ScriptedServer
from support.tables.given_questions import TOKENIZER, TOKENIZER_FOLDER, give_questions

from treadle.agent.trajectory import Trajectory
from treadle.agent.transcript import Transcript
from treadle.core.errors import (
    ConfigError,
    EndpointUnavailable,
    StageFailed,
    TreadleError,
)
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.runs.run import Run
from treadle.environments.question.episode import QuestionEpisode
from treadle.stages.report import telemetry_rows

NO_PYTHON = {"interpreter": "/no/python"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path, [f"Question {number}?" for number in range(6)])


@pytest.mark.covers("flywheel-30")
async def test_every_question_gets_k_rows_in_order_regardless_of_completion_order(bench: Bench) -> None:
    turn = Counter[str]()

    def reply(request: RecordedRequest) -> Item:
        turn[request.text] += 1
        return ANSWER if turn[request.text] % 3 else "<think>no idea</think>"

    async with server(reply) as scripted:
        record = await bench.make(scripted.url, options={"samples_per_question": 16, "max_questions": 4})
    rows = bench.rows(record)
    assert [(row["question_key"], row["sample_index"]) for row in rows] == [
        (f"q{number:02d}", sample) for number in range(4) for sample in range(16)
    ]
    assert Counter(row["status"] for row in rows) == {"answered": 44, "no_answer": 20}
    assert record.metrics["num_rollouts"] == 64 and record.metrics["status_answered"] == 44
    assert len({row["rollout_key"] for row in rows}) == len({row["seed"] for row in rows}) == 64
    assert {row["tokenizer_digest"] for row in rows} == {TOKENIZER.digest}


async def test_question_format_determines_the_system_message_and_digest(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r", {}, {})
    forms = [None, "assertion", "open_ended", "multiple_choice"]
    give_questions(run, [{"question": f"Question {form}?", "format": form} for form in forms])
    bench = Bench.of(run)
    async with server() as scripted:
        rows = bench.rows(await bench.make(scripted.url))
    environment = bench.instance("http://127.0.0.1:9").settings.environment
    prompts = [TOKENIZER.decode(row["samples"][0]["prompt_ids"]) for row in rows]
    assert [environment.system_text_of(form) in prompt for form, prompt in zip(forms, prompts, strict=True)] == [
        True
    ] * 4
    assert [row["environment_digest"] for row in rows] == [environment.digest(form) for form in forms]
    assert rows[0]["environment_digest"] == rows[3]["environment_digest"] != rows[1]["environment_digest"]


@pytest.mark.covers("flywheel-2")
async def test_requests_contain_every_sampling_parameter(bench: Bench) -> None:
    sampling = {"temperature": 0.7, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "max_tokens": 77}
    async with server() as scripted:
        await bench.make(scripted.url, options={"sampling": sampling, "max_questions": 1})
        body = work_requests(scripted)[0].body
    assert {name: body[name] for name in sampling} == sampling
    assert sorted(body["stop"]) == ["</answer>", "</python>", "</search>"]
    assert body["include_stop_str_in_output"] is True and body["return_token_ids"] is True
    assert isinstance(body["prompt"], list) and isinstance(body["seed"], int)


async def test_questions_are_selected_by_split_dataset_and_limit(bench: Bench) -> None:
    async with server() as scripted:

        async def keys(**options: Any) -> list[str]:
            record = await bench.make(scripted.url, options=options)
            return [row["question_key"] for row in bench.rows(record)]

        assert await keys(split="heldout") == ["q00", "q04"]
        assert await keys(datasets=["odd"], max_questions=2) == ["q01", "q03"]
        assert await keys(max_questions_per_dataset=1) == ["q00", "q01"]
        with pytest.raises(StageFailed, match="no question is selected"):
            await keys(datasets=["missing"])


@pytest.mark.covers("flywheel-31")
async def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((1, 1, 2)):
        bench = Bench(tmp_path / str(number), ["a", "b", "c"])
        async with server(lambda request: f"<answer>{request.body['seed']}</answer>") as scripted:
            record = await bench.make(scripted.url, seed=seed, options={"max_concurrent": 1 + number})
        digests.append(record.outputs["rollouts"].digest)
    assert digests[0] == digests[1] != digests[2]


async def test_memory_use_depends_on_rollouts_in_flight_not_finished_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [f"Question {number}?" for number in range(40)])
    in_flight, num_rollouts = 3, 40 * 4
    kinds = (Transcript, Trajectory, Completion, CompletionRequest, QuestionEpisode, asyncio.Timeout)
    most: Counter[type] = Counter()
    served = 0

    def reply(request: RecordedRequest) -> Item:
        nonlocal served
        served += 1
        if served % 10 == 0:
            gc.collect()
            alive = Counter(type(item) for item in gc.get_objects())
            most.update({kind: max(0, alive[kind] - most[kind]) for kind in kinds})
        return ANSWER

    gc.collect()
    gc.freeze()  # What earlier tests left is not looked at.
    try:
        async with server(reply) as scripted:
            options = {"samples_per_question": 4, "max_concurrent": in_flight}
            record = await bench.make(scripted.url, options=options)
    finally:
        gc.unfreeze()
    assert record.metrics["status_answered"] == num_rollouts
    assert most[Transcript] > 0
    # Three for each rollout in flight leave room for the server's own; one kept per rollout done would be 160.
    assert max(most.values()) <= 3 * in_flight


async def test_concurrent_rollouts_respect_the_configured_limit(bench: Bench) -> None:
    async with server() as scripted:
        await bench.make(scripted.url, options={"samples_per_question": 8, "max_concurrent": 3})
        assert scripted.max_in_flight <= 3


async def test_server_without_token_ids_gives_rows_without_ids(bench: Bench) -> None:
    async with ScriptedServer(lambda _: ANSWER, codec=TOKENIZER, ids=False) as scripted:
        record = await bench.make(scripted.url)
        assert isinstance(work_requests(scripted)[0].prompt, str)
    row = bench.rows(record)[0]
    assert (row["status"], row["samples"][0]["ids"], row["samples"][0]["prompt_ids"], row["tokenizer_digest"]) == (
        "answered",
        [],
        [],
        "",
    )
    assert row["text"] == ANSWER


@pytest.mark.covers("flywheel-32")
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"environment": {"python": {"enabled": True, "sandbox": NO_PYTHON}}}, TreadleError, "/no/python"),
        ({"model": {"endpoints": [{"url": "http://127.0.0.1:9/v1"}]}}, EndpointUnavailable, "127.0.0.1:9"),
        ({"model": {"model": "other"}}, ConfigError, "does not serve model 'other'"),
        ({"model": {"tokenizer": "/nowhere"}}, ConfigError, "/nowhere"),
        ({"tokenizer_digest": "0"}, ConfigError, "differs from the one"),
        ({"model": {"token_ids": "required", "tokenizer": None}}, ConfigError, "needs a tokenizer"),
        ({"environment": {"search": {"enabled": True}}}, TreadleError, "corpus"),
    ],
)  # fmt: skip
async def test_unworkable_settings_stop_before_the_first_rollout(
    bench: Bench, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    async with server() as scripted:
        with pytest.raises(error, match=message) as caught:
            await bench.make(scripted.url, **changes)
        assert "\n" not in str(caught.value)
        assert work_requests(scripted) == []


@pytest.mark.covers("flywheel-7")
async def test_agent_uses_both_real_tools(bench: Bench, tmp_path: Path) -> None:
    turns = [
        "<think>s</think><search>moss</search>",
        "<think>p</think><python>print(6 * 7)</python>",
        "<search></search>",
        "<python>1/0</python>",
        ANSWER,
    ]

    def reply(request: RecordedRequest) -> Item:
        return turns[request.text.split("assistant\n")[-1].count("</result>")]

    environment = {
        "search": {"enabled": True, "corpus": [str(corpus(tmp_path))], "cache_folder": str(tmp_path)},
        "python": {"enabled": True, "sandbox": {"packages": [], "interpreter": sys.executable, "pool_size": 1}},
    }
    async with server(reply) as scripted:
        record = await bench.make(scripted.url, environment=environment, options={"max_questions": 1})
    row = bench.rows(record)[0]
    calls = json.loads(row["tool_calls"])
    assert [(call["tool"], call["status"], call["turn"]) for call in calls] == [
        ("search", "ok", 0),
        ("python", "ok", 1),
        ("search", "invalid", 2),
        ("python", "error", 3),
    ]
    assert record.metrics["sandbox_isolation"] == "bubblewrap"
    assert record.metrics["sandbox_python"] == ".".join(map(str, sys.version_info[:3]))
    kinds = [segment["kind"] for segment in json.loads(row["segments"])]
    assert kinds == ["think", "search", "result", "think", "python", "result", "search", "result", "python", "result",
                     "think", "answer"]  # fmt: skip
    assert "<result>42</result>" in row["text"] and "&lt;answer>stones&lt;/answer>" in row["text"]
    assert "ZeroDivisionError" in row["text"]
    counts = ("calls_requested", "calls_executed", "failed_calls", "num_turns")
    assert tuple(row[name] for name in counts) == (4, 4, 2, 5)
    by_tool = {one["tool"]: (one["requested"], one["executed"], one["failed"]) for one in row["tools"]}
    assert by_tool == {"python": (2, 2, 1), "search": (2, 2, 1)}
    assert record.metrics["tools"] == {one.pop("tool"): one for one in row["tools"]}
    (telemetry,) = telemetry_rows(record, bench.run, "rollout_telemetry")
    assert [(one["tool"], one["executed"], one["seconds"] > 0) for one in telemetry["seconds_by_tool"]] == [
        ("python", 2, True),
        ("search", 2, True),
    ]


class Shifted:
    """A vocabulary of the same size in which every byte has another id."""

    def encode(self, text: str) -> list[int]:
        return [(item + 1) % 256 for item in TOKENIZER.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return TOKENIZER.decode([(item - 1) % 256 for item in ids])


async def test_tokenizer_that_differs_from_the_server_is_refused_before_a_rollout(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ["1?"])
    async with ScriptedServer(lambda _: ANSWER, codec=Shifted(), tells_prompts=True) as server:
        with pytest.raises(ConfigError, match=f"{server.url} tokenizes a text .* tokenizer in {TOKENIZER_FOLDER}"):
            await bench.make(server.url)
        assert len(server.requests) == 2
    async with ScriptedServer(lambda _: ANSWER, codec=TOKENIZER, tells_prompts=True) as server:
        assert (await bench.make(server.url)).metrics
