"""When judges ask a model, how its words are read, and what identifies a judge."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts.judge_bench import CASE, FAR, asked, judged
from support.sandbox.memories import Remembering
from support.servers.scripted_server import Fault, Reply

from treadle.agent.judges import correctness
from treadle.agent.judges.answer import AnswerJudge, answer_judge_digest
from treadle.agent.judges.correctness import Correctness
from treadle.agent.judges.model import ModelJudge
from treadle.agent.judges.rules import DEFAULT_SYMBOLIC
from treadle.agent.judges.views import MAX_PREDICTION_CHARS
from treadle.core.errors import EndpointUnavailable
from treadle.datagen.questions.benchmarks import RULES


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Correct", True),
        ("Incorrect", False),
        (" correct.\n", True),
        ("**INCORRECT**", False),
        ('"Correct!"', True),
        ("`correct`", True),
        ("> Correct", True),
        ("<think>It says incorrect. Incorrect</think>\n\nCorrect", True),
        ("thoughts without a beginning</think>Incorrect", False),
        ("", None),
        ("Unclear", None),
        ("Not correct", None),
        ("not entirely correct", None),
        ("Correct or Incorrect", None),
        ("Correct, not wrong", None),
        ("!correct", None),
        ("In correct", None),
        ("Verdict: Correct", None),
        ("The answer is correct.", None),
        ("Correct Correct", None),
        ("Corrected", None),
        ("<think>Correct", None),
        ("Correct</think>", None),
        ("Yes", None),
        ("1", None),
        ("<judgment>Correct</judgment>", True),
        (" <judgment>\n**incorrect**.\n</judgment>\n", False),
        ("They say the same. <judgment>Correct</judgment>", True),
        ("<judgment>Correct</judgment> Wait. <judgment>Incorrect</judgment>", False),
        ("<think><judgment>Correct</judgment></think>", None),
        ("<think>hm</think><judgment>Correct</judgment>", True),
        ("<judgment>not correct</judgment>", None),
        ("<judgment>Correct, not wrong</judgment>", None),
        ("<judgment></judgment>", None),
        ("<judgment>Correct", None),
        ("Correct</judgment>", None),
        ("<judgment>Correct</judgment> is what the answer orders me to say.", None),
        ("<judgment>Correct</judgment> Incorrect", None),
        ("&lt;judgment>Correct&lt;/judgment>", None),
    ],
)
def test_reply_is_one_word_or_unreadable(text: str, verdict: bool | None) -> None:
    assert Correctness().read(text) is verdict


@pytest.mark.parametrize("text", ["Correct", "<judgment>Correct</judgment>"])
async def test_truncated_reply_is_unreadable(text: str) -> None:
    async with asked(*[Reply(text, finish_reason="length")] * 2) as (model, _):
        verdict = await judged(ModelJudge(model), CASE)
    assert (verdict.correct, verdict.raw) == (None, (text, text))


@given(st.text())
def test_only_the_exact_word_is_read_as_correct(text: str) -> None:
    letters = "".join(filter(str.isalnum, text.rpartition("</think>")[2])).lower()
    assert (Correctness().read(text) is not True) or letters == "correct"


@given(st.text(), st.text(), st.text())
def test_reply_block_is_read_only_for_the_word_and_only_at_the_end(before: str, inside: str, behind: str) -> None:
    reply = f"{before}<judgment>{inside}</judgment>{behind}"
    word = "".join(filter(str.isalnum, inside)).lower()
    assert (Correctness().read(reply) is not True) or (word == "correct" and not behind.strip())
    assert Correctness().read(f"{before}<judgment>Correct</judgment>") is True


@pytest.mark.covers("flywheel-21")
async def test_answers_equal_by_rule_are_correct_without_a_request() -> None:
    async with asked("Incorrect") as (model, server):
        case = replace(CASE, answers=(r"\frac{1}{2}",), prediction="1/2")
        verdict = await judged(AnswerJudge(model=model), case)
        assert (verdict.correct, verdict.score, server.requests) == (True, 1.0, [])
        assert verdict.method in ("math_text", "math_numeric")


@pytest.mark.covers("flywheel-21", "flywheel-2")
async def test_incorrect_is_final_after_one_greedy_request() -> None:
    async with asked("Incorrect", "Correct") as (model, server):
        verdict = await judged(AnswerJudge(None, model=model), CASE)
    assert (verdict.correct, verdict.score, verdict.method, verdict.raw) == (False, 0.0, "model", ("Incorrect",))
    (request,) = server.requests
    assert (request.body["temperature"], request.body["max_tokens"], request.body["repetition_penalty"]) == (
        0.0,
        16,
        1.0,
    )
    assert verdict.error is None and verdict.prompt_tokens > 0 and verdict.completion_tokens > 0


@pytest.mark.covers("flywheel-21")
async def test_unreadable_reply_is_retried_once_and_never_counts_as_correct() -> None:
    async with asked("not entirely correct", "It is correct, not wrong", "Correct") as (model, server):
        verdict = await judged(AnswerJudge(None, model=model), CASE)
    assert (verdict.correct, verdict.score) == (None, None)
    assert verdict.raw == ("not entirely correct", "It is correct, not wrong")
    assert verdict.error == "the judge replied neither Correct nor Incorrect, but 'It is correct, not wrong'"
    first, second = (request.body for request in server.requests)
    assert first["seed"] != second["seed"]
    nonces = [set(re.findall(r"<\w+_([0-9a-f]{16})>", body["messages"][1]["content"])) for body in (first, second)]
    assert len(nonces[0]) == len(nonces[1]) == 1 and nonces[0] != nonces[1]


async def test_second_reply_counts_if_the_first_is_unreadable() -> None:
    async with asked("Hm.", "Correct") as (model, _):
        verdict = await judged(AnswerJudge(None, model=model), CASE)
    assert (verdict.correct, verdict.score, verdict.error) == (True, 1.0, None)


async def test_judge_prompt_names_the_nonce_and_keeps_data_in_blocks() -> None:
    async with asked("Correct") as (model, server):
        await judged(ModelJudge(model), CASE)
    system, user = (message["content"] for message in server.requests[0].body["messages"])
    nonce = re.search(r"end in ([0-9a-f]{16})\.", user)
    assert nonce is not None
    outside = re.sub(rf"(?s)<(\w+_{nonce[1]})>\n.*?\n</\1>", "", user)
    assert "Reed" not in outside + system and "Who" not in outside + system
    assert outside.rstrip().endswith("Reply with a single word, Correct or Incorrect.")


async def test_repeated_and_concurrent_answers_are_judged_once() -> None:
    memory = Remembering()
    async with asked("Incorrect") as (model, server):
        judge = ModelJudge(model)
        verdicts = await asyncio.gather(*(judge.verdict(CASE, memory) for _ in range(5)))
        resumed = await ModelJudge(model).verdict(replace(CASE, deadline=FAR + 1), memory)
        assert verdicts == [resumed] * 5 and resumed.correct is False
        assert len(server.requests) == 1


@pytest.mark.parametrize("change", [{"prediction": "B"}, {"question": "?"}, {"answers": ("C",)}])
async def test_another_answer_question_or_gold_answer_is_judged_again(change: dict[str, str]) -> None:
    memory = Remembering()
    async with asked("Incorrect", "Correct") as (model, _):
        judge = ModelJudge(model)
        assert (await judge.verdict(CASE, memory)).correct is False
        assert (await judge.verdict(replace(CASE, **change), memory)).correct is True  # type: ignore[arg-type]


async def test_cancelled_request_does_not_block_other_requests() -> None:
    memory = Remembering()
    async with asked(Fault("hang"), "Correct") as (model, server):
        judge = ModelJudge(model)
        first = asyncio.ensure_future(judge.verdict(CASE, memory))
        while not server.requests:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(judge.verdict(CASE, memory))
        first.cancel()
        assert (await second).correct is True


async def test_unavailable_model_leaves_the_verdict_pending() -> None:
    async with asked(Fault.status(500), retry_limit=0) as (model, _):
        with pytest.raises(EndpointUnavailable):
            await judged(AnswerJudge(None, model=model), CASE)


async def test_prompt_beyond_the_window_leaves_the_verdict_unknown() -> None:
    async with asked(Fault.too_long()) as (model, server):
        verdict = await judged(AnswerJudge(None, model=model), CASE)
    assert (verdict.correct, verdict.score, verdict.method) == (None, None, "model")
    assert verdict.error is not None and len(server.requests) == 1


@pytest.mark.parametrize(
    ("change", "method"),
    [
        ({"answered": False, "prediction": "Ann Reed"}, "status"),
        ({"prediction": " \n"}, "empty"),
        ({"prediction": "x" * (MAX_PREDICTION_CHARS + 1)}, "too_long"),
    ],
)
async def test_unfinished_empty_and_endless_answers_are_wrong_without_a_request(
    change: dict[str, object], method: str
) -> None:
    case = replace(CASE, **change)  # type: ignore[arg-type]
    async with asked("Correct") as (model, server):
        for judge in (ModelJudge(model), AnswerJudge(None, model=model)):
            verdict = await judged(judge, case)
            assert (verdict.correct, verdict.score, verdict.method) == (False, 0.0, method)
        assert server.requests == []


@pytest.mark.covers("flywheel-22")
async def test_dapo_is_judged_as_math() -> None:
    case = replace(CASE, domain=RULES["dapo"].domain or "")
    async with asked("Correct") as (model, server):
        verdict = await judged(AnswerJudge(None, model=model), case)
        assert (verdict.correct, verdict.method, len(server.requests)) == (True, "model", 1)


def test_everything_that_affects_a_verdict_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {
        answer_judge_digest(DEFAULT_SYMBOLIC, 0.8, asks_model=False),
        answer_judge_digest(DEFAULT_SYMBOLIC, 0.8, asks_model=True),
        answer_judge_digest(DEFAULT_SYMBOLIC, 0.7, asks_model=True),
        answer_judge_digest(None, 0.8, asks_model=True),
        answer_judge_digest(replace(DEFAULT_SYMBOLIC, limit_s=9.0), 0.8, asks_model=True),
    }
    monkeypatch.setattr(correctness, "prompt_text", lambda file: f"another {file}")
    digests.add(answer_judge_digest(DEFAULT_SYMBOLIC, 0.8, asks_model=True))
    assert len(digests) == 6
    more_workers = replace(DEFAULT_SYMBOLIC, workers=9)
    assert AnswerJudge(more_workers).digest() == answer_judge_digest(DEFAULT_SYMBOLIC, 0.8, asks_model=False)
