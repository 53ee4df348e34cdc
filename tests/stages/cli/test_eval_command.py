"""`treadle eval` as its users see it: an ordinary run, whatever stops it, and one line per mistake."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs.command_line import Desk, num_requests, tutor
from support.runs.processes import until
from support.servers.hosted_service import fussy, hosted
from support.servers.scripted_server import Fault, Item, RecordedRequest, ScriptedServer
from support.tables.given_questions import TOKENIZER, TOKENIZER_FOLDER

from treadle.core.runs.run import Run

QUICK = ("--set", "scores.symbolic=false", "--tools", "none")
ONE_SANDBOX = ("--tools", "python", "--set", "environment.python.sandbox={packages=[],pool_size=1}")
NUM_ROWS = 12
COMPUTED = [{"tool": "python", "requested": 1, "executed": 1, "failed": 0}]


def wages(women: int) -> dict[str, str]:
    """Return a row of gsm8k that the tutor computes with Python."""
    total = (110 + women) * 12
    return {
        "question": f"Divrubu hires 110 men and {women} women and pays each of them 12 coins. "
        "How many coins is that in all?",
        "answer": f"There are 110+{women} of them.\nThey get <<(110+{women})*12={total}>>{total}.\n#### {total}",
    }


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with tutor() as url:
        yield url


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    (tmp_path / "data" / "gsm8k").mkdir(parents=True)
    desk.write("data/gsm8k/test.jsonl", *(wages(120 + row) for row in range(NUM_ROWS)))
    return desk


def command(url: str, *more: str, benchmark: str = "gsm8k=data/gsm8k/test.jsonl", run: str = "r") -> tuple[str, ...]:
    asked = ("eval", "--endpoint", url, "--model", "treadle-tutor", "--benchmark", benchmark, "--run", run)
    return (*asked, *QUICK, *more)


def test_model_is_evaluated_in_an_ordinary_run(desk: Desk, url: str) -> None:
    asked = command(url, "--max-questions", "3", *ONE_SANDBOX)
    done = desk.treadle(*asked).succeeded()
    table = [line.split() for line in done.out.splitlines() if line.startswith("treadle-tutor")]
    assert [row[:2] for row in table] == [["treadle-tutor", "gsm8k"]] * 2 and "1.000" in table[0]  # figures, then times
    assert "warning: treadle-tutor is prompted in ChatML" in done.err
    scores = desk.rows("r", "1/scores@treadle-tutor", "scores")
    assert len(scores) == 3 and all(row["correct"] for row in scores)
    questions = desk.rows("r", "1/questions", "questions")
    assert [(row["source_row"], row["split"]) for row in questions] == [(row, "heldout") for row in range(1, 4)]
    # The run contains its config, and plain `treadle run` uses it.
    kept = json.loads((desk.folder / "outputs/runs/r/config.json").read_text())
    assert kept["questions"]["sources"][0]["limit"] == 3 and not kept["environment"]["search"]["enabled"]
    for again in (("run", "--run", "r"), asked, ("eval", "--run", "r")):
        assert all(record["reused"] for record in desk.treadle(*again, "--json").succeeded().json())


def test_rejects_other_settings_for_an_existing_run(desk: Desk, url: str) -> None:
    desk.treadle(*command(url, "--max-questions", "1")).succeeded()
    for change in (("--temperature", "0"), ("--tools", "python")):
        line = desk.treadle(*command(url, "--max-questions", "1", *change)).failed("choose a new run id", code=2)
        assert " -> " in line and "max_error_rate" not in line
    desk.treadle(*command(url, "--max-questions", "2")).failed("limit: 1 -> 2", code=2)
    # What does not change results may change.
    limits = ("--max-total-tokens", "900000", "--prices", "1/2", "--max-cost", "3", "--endpoint", f"{url}/")
    done = desk.treadle(*command(url, "--max-questions", "1", *limits, "--json")).succeeded()
    assert all(record["reused"] for record in done.json())
    more = desk.treadle(*command(url, "--max-questions", "1", "--samples", "2")).succeeded()
    assert "1 of 2 rollouts to be made, 1 reused; because: 1 further sample; about" in more.err


@pytest.mark.sweep
def test_killed_evaluation_resumes_with_the_same_command(desk: Desk) -> None:
    with tutor("--latency-s", "0.3") as url:
        arguments = command(url, "--set", "rollouts.max_concurrent=2")
        with desk.started(*arguments) as process:
            until(lambda: num_requests(url) >= NUM_ROWS // 2, "half of the rollouts", 300.0)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert 0 < num_requests(url) < 2 * NUM_ROWS
        desk.treadle(*arguments).succeeded()
        resumed = num_requests(url)
        desk.treadle(*command(url, run="whole")).succeeded()
        # What was in flight is asked again, and for a preflight of each attempt; nothing else is.
        assert resumed <= (num_requests(url) - resumed) + 2 + 2
    runs = [Run.open(desk.folder / "outputs", name) for name in ("r", "whole")]
    made = [{record.stage: record.outputs for record in run.records()} for run in runs]
    for stage in ("questions", "rollouts", "scores", "report"):
        kinds = [kind for kind in made[0][stage] if "telemetry" not in kind and kind != "metering"]
        assert kinds and all(made[0][stage][kind].digest == made[1][stage][kind].digest for kind in kinds), stage


def test_evaluation_waits_for_an_absent_server(desk: Desk, url: str) -> None:
    asked = ("--max-questions", "2", "--set", "models.treadle-tutor.retry_limit=0")
    dead = desk.treadle(*command("http://127.0.0.1:9/v1", *asked))
    dead.failed("http://127.0.0.1:9/v1", "cannot be reached", "start the server or correct the URL", code=1)
    done = desk.treadle(*command(url, *asked, "--json")).succeeded()
    assert [record["reused"] for record in done.json()] == [True, False, False, False]


def test_dry_run_creates_nothing_and_prints_the_config(desk: Desk, url: str) -> None:
    before = desk.tree() | {".out", ".err"}
    done = desk.treadle(*command(url, "--samples", "3", "--max-questions", "5", "--dry-run", "--json")).json()
    assert set(done["plan"].values()) == {"run"} and done["config"]["rollouts"]["samples_per_question"] == 3
    assert [estimate["num_units"] for estimate in done["estimates"]] == [15]
    shown = desk.treadle(*command(url, "--samples", "3", "--dry-run")).succeeded().out
    assert "  rollouts.samples_per_question = 3\n" in shown and "  rollouts.sampling.temperature = 0.6\n" in shown
    assert desk.tree() == before


def test_budget_stops_an_evaluation_and_a_higher_one_resumes_it(desk: Desk, url: str) -> None:
    one_at_a_time = ("--set", "rollouts.max_concurrent=1")
    desk.treadle(*command(url, "--max-total-tokens", "2000", *one_at_a_time)).failed("max_total_tokens", code=1)
    desk.treadle(*command(url, "--max-total-tokens", "2000000", *one_at_a_time)).succeeded()


FILE = "gsm8k=data/gsm8k/test.jsonl"
WRONG = [
    (("--model", "m"), "no benchmark is given", "--benchmark gsm8k=test.jsonl"),
    (("--benchmark", FILE), "no model is named", "--model and --endpoint"),
    (("--run", "new"), "no model is named"),
    (("--model", "m", "--benchmark", FILE), "model m has no server", "--endpoint"),
    (("--model", "m", "--benchmark", "gsmk8=x"), "no file 'x'", "did you mean gsm8k"),
    (("--model", "m", "--benchmark", "zzz"), "'zzz' is not known", "zzz=FILE", "known are", "math500"),
    (("--model", "m", "--benchmark", "gsm8k=no.jsonl"), "no file 'no.jsonl'"),
    (("--model", "m", "--benchmark", "gsm8k"), "has no file", "--data-root"),
    (("--model", "m", "--benchmark", "math500", "--data-root", "data"), "data/math500 has no", "in data: gsm8k"),
    (("--model", "m", "--benchmark", FILE, "--benchmark", FILE), "gsm8k is given twice"),
    (("--model", "m", "--benchmark", FILE, "--tools", "search"), "--corpus FILE or --retriever URL"),
    (("--model", "m", "--benchmark", FILE, "--tools", "perl"), "'perl' is not python, search"),
    (("--model", "m", "--benchmark", FILE, "--corpus", "a", "--retriever", "b"), "--corpus and --retriever"),
    (("--model", "m", "--benchmark", FILE, "--endpoint", "http://x/v1", "--max-cost", "1"), "give --prices"),
    (("--model", "m", "--benchmark", FILE, "--prices", "1"), "not two numbers"),
    (("--model", "m", "--benchmark", FILE, "--endpoint", "http://x/v1", "--api-key-env", "sk-1"), "never into"),
    (("--model", "m", "--benchmark", FILE, "--endpoint", "x"), "is not an http(s) URL"),
    (("none.toml", "--run", "r"), "none.toml does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), [(case[0], case[1:]) for case in WRONG], ids=lambda case: case[0])
def test_mistakes_are_reported_in_one_line_before_any_work(
    desk: Desk, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    desk.treadle("eval", *arguments).failed(*words, code=2)
    assert not (desk.folder / "outputs").exists()


def test_wrong_model_name_and_missing_key_are_reported_before_a_run_is_created(desk: Desk, url: str) -> None:
    asked = ("--benchmark", FILE, "--endpoint", url)
    desk.treadle("eval", "--model", "gpt", *asked).failed("does not serve model 'gpt'", "treadle-tutor", code=2)
    keyed = ("--model", "treadle-tutor", "--api-key-env", "NO_SUCH_KEY")
    desk.treadle("eval", *keyed, *asked).failed("NO_SUCH_KEY is not set", code=2)
    assert not (desk.folder / "outputs").exists()


def test_bad_rows_stop_an_evaluation_with_file_and_line(desk: Desk, url: str) -> None:
    desk.write("bad.jsonl", wages(3), {"question": "How many?", "answer": "nobody knows"}, wages(4))
    line = desk.treadle(*command(url, benchmark="gsm8k=bad.jsonl")).failed("1 of 3", "bad.jsonl", "row 2", code=1)
    assert "####" in line and "--accept-failures" in line
    done = desk.treadle(*command(url, "--accept-failures", "--json", benchmark="gsm8k=bad.jsonl")).succeeded()
    assert done.json()[0]["metrics"]["questions"] == 2
    desk.write("empty.jsonl")
    desk.treadle(*command(url, benchmark="gsm8k=empty.jsonl", run="e")).failed("empty.jsonl", "no rows", code=2)


def computes(request: RecordedRequest) -> Item:
    """Return an agent over the chat route that computes the wages with Python, and answers with the output."""
    assert request.messages is not None
    said = request.messages[-1]["content"]
    if (result := re.fullmatch(r"<result>(\d+)</result>", said)) is not None:
        return f"<think>That is it.</think><answer>\\boxed{{{result[1]}}}</answer>"
    if (women := re.search(r"(\d+) women", said)) is None:
        return "Hi"
    return f"<think>Compute.</think><python>print((110 + {women[1]}) * 12)</python>"


async def test_chat_only_service_needs_the_chat_option_and_fails_in_one_line_without(desk: Desk) -> None:
    async with hosted(computes, model="treadle-tutor") as service:
        plain = command(service.url, "--max-questions", "3", *ONE_SANDBOX)
        refused = await asyncio.to_thread(desk.treadle, *plain)
        refused.failed("lists the model, but", "/completions answers HTTP 404", "--chat", code=2)
        assert not (desk.folder / "outputs").exists()
        asked = (*plain, "--chat", "--tokenizer", str(TOKENIZER_FOLDER))
        done = (await asyncio.to_thread(desk.treadle, *asked)).succeeded()
        assert "ChatML" not in done.err and "text mode" not in done.err
        used = [(len(request.messages or ()), request.path) for request in service.requests[-6:]]
        again = (await asyncio.to_thread(desk.treadle, *asked, "--json")).succeeded()
    assert sorted(used) == [(2, "/v1/chat/completions")] * 3 + [(4, "/v1/chat/completions")] * 3
    assert all(record["reused"] for record in again.json())
    rows = desk.rows("r", "1/rollouts@treadle-tutor", "rollouts")
    assert [(row["status"], row["tools"], row["samples"][0]["ids"]) for row in rows] == [("answered", COMPUTED, [])] * 3
    assert all("<python>print((110 + 1" in row["text"] and "<result>2" in row["text"] for row in rows)
    scores = desk.rows("r", "1/scores@treadle-tutor", "scores")
    assert all(row["correct"] and row["reasoning_tokens"] for row in scores)


async def test_model_with_fixed_sampling_is_reported_before_a_run_is_created(desk: Desk) -> None:
    async with hosted(fussy(computes, []), model="treadle-tutor") as service:
        asked = command(service.url, "--chat", "--max-questions", "1", *ONE_SANDBOX)
        line = (await asyncio.to_thread(desk.treadle, *asked)).failed(
            "accepts no temperature but 1 and no top_p", code=2
        )
        assert "set that in rollouts.sampling" in line and not (desk.folder / "outputs").exists()
        fixed = ("--temperature", "1", "--set", "rollouts.sampling.top_p=1")
        done = (await asyncio.to_thread(desk.treadle, *asked, *fixed)).succeeded()
    assert "refuses stop strings: requests have none; text after a call is dropped, but billed" in done.err
    (row,) = desk.rows("r", "1/rollouts@treadle-tutor", "rollouts")
    assert (row["tools"], row["status"]) == (COMPUTED, "answered")


async def test_killed_chat_evaluation_pays_for_each_answer_once(desk: Desk) -> None:
    stuck, free = asyncio.Event(), asyncio.Event()

    def stops_in_the_middle(request: RecordedRequest) -> Item:
        if free.is_set() or len(agents(service)) <= NUM_ROWS:
            return computes(request)
        stuck.set()
        return Fault("hang")

    def agents(server: ScriptedServer) -> list[RecordedRequest]:
        return [request for request in server.requests if "women" in request.text]

    def used(request: RecordedRequest) -> int:
        said = str(computes(request)).rpartition("</")[0]  # it drops the marker at which it stops
        return len(TOKENIZER.encode(request.text)) + len(TOKENIZER.encode(said))

    async with hosted(stops_in_the_middle, model="treadle-tutor") as service:
        one_at_a_time = ("--set", "rollouts.max_concurrent=1", "--chat")
        asked = command(service.url, *ONE_SANDBOX, *one_at_a_time)
        with desk.started(*asked) as process:
            await stuck.wait()
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        free.set()
        spent = sum(used(request) for request in agents(service)[:NUM_ROWS])
        limit = ("--max-total-tokens", str(spent))
        (await asyncio.to_thread(desk.treadle, *asked, *limit)).failed(f"{spent} tokens are used", code=1)
        assert len(agents(service)) == NUM_ROWS + 1
        (await asyncio.to_thread(desk.treadle, *asked)).succeeded()
        # Two turns of each, and the one that was in flight.
        assert len(agents(service)) == 2 * NUM_ROWS + 1
    rows = desk.rows("r", "1/scores@treadle-tutor", "scores")
    assert [row["correct"] for row in rows] == [True] * NUM_ROWS
