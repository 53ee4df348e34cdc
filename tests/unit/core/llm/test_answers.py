"""Strange answers of a server: each row of the table in docs/behaviour/llm.md, as bytes on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from support.rollouts.model_pool import request, settings
from support.rollouts.rollout_bench import load
from support.servers.scripted_server import Fault, ScriptedServer

from treadle.core.errors import ContextTooLong, ModelError
from treadle.core.llm.checks import PromptFacts, checked, prompt_facts
from treadle.core.llm.failures import Failure
from treadle.core.llm.oddities import ACCEPTED, ODDITIES, REFUSED, odd_sentences
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.wire import Answer, parse_chat, parse_completion

TOKENIZER = load("qwen")
TEXT = "<think>t</think><search>what grows on stones</search>"
IDS = TOKENIZER.encode(TEXT)
PROMPT = TOKENIZER.encode("Where does moss grow? " * 20)
STOPS = ("</python>", "</search>", "</answer>")
RENDERED = "<|im_start|>user\nWhere does moss grow, and since when has it done so there?<|im_end|>\n"

Change = Callable[[dict[str, Any]], Any]


def body(change: Change = lambda reply: None) -> bytes:
    """Return a good answer in ids, after one change; what the change returns, if anything, is the body instead."""
    choice = {"index": 0, "text": TEXT, "token_ids": IDS, "finish_reason": "stop", "stop_reason": "</search>"}
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(IDS)}
    reply: dict[str, Any] = {"model": "m", "choices": [choice], "usage": usage}
    changed = change(reply)
    return changed if isinstance(changed, bytes) else orjson.dumps(reply)


def of_choice(**changes: Any) -> Change:
    return lambda reply: reply["choices"][0].update(changes)


def of_usage(**changes: Any) -> Change:
    return lambda reply: reply["usage"].update(changes)


def each(*changes: Change) -> Change:
    def change_all(reply: dict[str, Any]) -> Any:
        return [change(reply) for change in changes][-1]

    return change_all


def in_bytes(old: bytes, new: bytes) -> Change:
    return lambda reply: orjson.dumps(reply).replace(old, new)


def long_text(reply: dict[str, Any]) -> None:
    reply["choices"][0].update(text=TEXT * 60, token_ids=IDS * 60)
    reply["usage"]["completion_tokens"] = 60 * len(IDS)


def read(data: bytes, prompt: list[int] | str = PROMPT) -> Answer:
    asked = prompt_facts("m", prompt, 256, STOPS, TOKENIZER, None)
    return checked(parse_completion(data), asked)


MALFORMED: dict[str, tuple[Change, str]] = {
    "not JSON": (lambda reply: b"<html>hello</html>", "not_json"),
    "cut off": (lambda reply: orjson.dumps(reply)[:-9], "not_json"),
    "invalid UTF-8": (in_bytes(b"stones", b"st\xff\xfes"), "not_json"),
    "lone surrogate": (in_bytes(b"stones", b"\\ud800"), "not_json"),
    "lone surrogate, and U+FFFD elsewhere": (
        each(lambda reply: reply.update(id="\ufffd"), in_bytes(b"stones", b"\\ud800")),
        "not_json",
    ),
    "events of a stream": (lambda reply: b"data: " + orjson.dumps(reply) + b"\n\ndata: [DONE]\n", "not_json"),
    "a list": (lambda reply: b"[]", "no_completion"),
    "no choices": (lambda reply: reply.pop("choices"), "no_completion"),
    "empty choices": (lambda reply: reply["choices"].clear(), "no_completion"),
    "several choices": (lambda reply: reply["choices"].append(reply["choices"][0]), "no_completion"),
    "choice of another index": (of_choice(index=1), "no_completion"),
    "finish_reason is no text": (of_choice(finish_reason=7), "no_completion"),
    "error with status 200": (lambda reply: reply.update(error={"message": "out of memory"}), "error"),
    "text null": (of_choice(text=None), "no_text"),
    "chunk of a stream": (lambda reply: reply.update(choices=[{"delta": {}, "finish_reason": "stop"}]), "no_text"),
    "usage missing": (lambda reply: reply.pop("usage"), "no_usage"),
    "usage negative": (of_usage(prompt_tokens=-1), "no_usage"),
    "usage as text": (of_usage(completion_tokens="12"), "no_usage"),
    "id negative": (of_choice(token_ids=[-1, *IDS]), "bad_ids"),
    "id beyond 32 bits": (of_choice(token_ids=[2**31]), "bad_ids"),
    "id a fraction": (of_choice(token_ids=[1.0]), "bad_ids"),
    "id a boolean": (of_choice(token_ids=[True, *IDS]), "bad_ids"),
    "ids as texts": (of_choice(token_ids=[str(item) for item in IDS]), "bad_ids"),
    "ids no list": (of_choice(token_ids="12"), "bad_ids"),
    "id beyond the vocabulary": (of_choice(token_ids=[*IDS[:-1], TOKENIZER.vocab_size]), "unknown_ids"),
    "ids of another text": (of_choice(token_ids=list(reversed(IDS))), "ids_not_text"),
    "many ids of another text": (
        each(of_choice(text=TEXT * 9, token_ids=IDS * 4 + IDS[::-1] * 5), of_usage(completion_tokens=9 * len(IDS))),
        "ids_not_text",
    ),
    "no ids for a text": (each(of_choice(token_ids=[]), of_usage(completion_tokens=0)), "ids_not_text"),
    "text beyond its ids": (of_choice(text=TEXT * 3), "ids_not_text"),
    "usage of 999,999": (of_usage(completion_tokens=999_999), "usage"),
    "usage of 0": (each(of_usage(completion_tokens=0), of_choice(token_ids=None)), "usage"),
    "prompt of 999,999": (of_usage(prompt_tokens=999_999), "usage"),
    "prompt of 3": (of_usage(prompt_tokens=3), "usage"),
    "a text for one token": (of_choice(text="x" * 99_999, token_ids=None), "usage"),
    "longer than max_tokens": (long_text, "too_long"),
    "prompt repeated": (
        each(of_choice(text=TOKENIZER.decode(PROMPT), token_ids=PROMPT), of_usage(completion_tokens=len(PROMPT))),
        "echo",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "oddity"), MALFORMED.values(), ids=MALFORMED)
def test_impossible_answer_is_malformed(change: Change, oddity: str) -> None:
    with pytest.raises(Failure) as caught:
        read(body(change))
    assert (caught.value.kind, caught.value.oddity) == ("malformed", oddity)
    assert oddity in REFUSED and "\n" not in str(caught.value)


TAKEN: dict[str, tuple[Change, tuple[str, ...]]] = {
    "as it should be": (lambda reply: None, ()),
    "cut by a filter": (of_choice(finish_reason="content_filter"), ("content_filter",)),
    "unknown finish_reason": (of_choice(finish_reason="surprise"), ("unknown_finish",)),
    "another model": (lambda reply: reply.update(model="surprise"), ("other_model",)),
    "the model with a date": (lambda reply: reply.update(model="m-2026-01-01"), ()),
    "end of the turn in the ids": (of_choice(token_ids=[*IDS, *sorted(TOKENIZER.eos_ids)[:1]]), ()),
    "ids that end beyond the text": (of_choice(token_ids=[*IDS, *TOKENIZER.encode("\n")]), ()),
    "ids without the stop string": (of_choice(token_ids=TOKENIZER.encode(TEXT.removesuffix("</search>"))), ()),
    "text without its first blank": (of_choice(text=TEXT, token_ids=TOKENIZER.encode(f" {TEXT}")), ()),
    "text without a special token": (
        of_choice(token_ids=[TOKENIZER.prompt_ids([{"role": "user", "content": "q"}])[0], *IDS]),
        (),
    ),
    "log-probabilities of another length": (of_choice(logprobs={"token_logprobs": [0.5]}), ()),
    "a key twice": (in_bytes(b'"stop_reason"', b'"text":"%b","stop_reason"' % TEXT.encode()), ()),
    "no model": (lambda reply: reply.pop("model"), ()),
}


@pytest.mark.parametrize(("change", "notes"), TAKEN.values(), ids=TAKEN)
def test_odd_but_valid_answer_is_accepted_and_logged(change: Change, notes: tuple[str, ...]) -> None:
    answer = read(body(change))
    assert answer.text == TEXT and answer.notes == notes
    assert ACCEPTED.issuperset(notes)


@pytest.mark.parametrize("finish", [None, "abort", "error"])
def test_server_that_gives_up_has_failed(finish: str | None) -> None:
    with pytest.raises(Failure, match="gave up") as caught:
        read(body(of_choice(finish_reason=finish)))
    assert caught.value.kind == "server"


@pytest.mark.parametrize(("code", "kind"), [(429, "rate_limit"), (503, "server"), (401, "refused"), ("x", "malformed")])
def test_error_with_status_200_counts_as_the_status_it_names(code: object, kind: str) -> None:
    with pytest.raises(Failure, match="slow down") as caught:
        read(orjson.dumps({"error": {"message": "slow down", "code": code}}))
    assert caught.value.kind == kind


def test_nul_character_is_ordinary_text() -> None:
    text = "a\0b"
    assert read(body(of_choice(text=text, token_ids=None))).text == text


def test_text_prompt_bounds_its_tokens_and_is_not_echoed() -> None:
    def in_text(reply: dict[str, Any]) -> None:
        reply["choices"][0]["token_ids"] = None
        reply["usage"]["prompt_tokens"] = 30

    assert read(body(in_text), RENDERED).text == TEXT
    for change, oddity in ((of_usage(prompt_tokens=len(RENDERED) + 17), "usage"), (of_choice(text=RENDERED), "echo")):
        with pytest.raises(Failure) as caught:
            read(body(each(in_text, change)), RENDERED)
        assert caught.value.oddity == oddity


@pytest.mark.parametrize(
    ("finish", "keys", "told"),
    [
        ("stop", {"stop_reason": "</search>"}, ("stop", "</search>", False)),
        ("stop", {"stop_reason": 151645}, ("stop", None, True)),
        ("stop", {"matched_stop": "</search>"}, ("stop", "</search>", False)),
        ("stop", {"matched_stop": 151645}, ("stop", None, True)),
        ("stop", {}, ("stop", None, False)),
        ("stop_sequence", {}, ("stop", None, False)),
        ("eos_token", {}, ("stop", None, True)),
        ("end_turn", {}, ("stop", None, True)),
        ("max_tokens", {}, ("length", None, False)),
    ],
)
def test_server_specific_finish_reasons_are_mapped(
    finish: str, keys: dict[str, Any], told: tuple[str, str | None, bool]
) -> None:
    answer = read(body(of_choice(finish_reason=finish, **{"stop_reason": None, **keys})))
    assert (answer.finish_reason, answer.stop_reason, answer.own_end) == told


def test_chat_usage_beyond_max_tokens_is_logged_as_hidden_reasoning() -> None:
    choice = {"message": {"content": "Yes."}, "finish_reason": "stop"}
    data = orjson.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 999_999}})
    assert checked(parse_chat(data), PromptFacts("m", 256)).notes == ("over_max_tokens",)


def answers_of(data: bytes) -> Fault:
    return Fault("status", 200, data.decode())


async def test_malformed_answer_is_retried_elsewhere_and_counted() -> None:
    data = body(of_usage(completion_tokens=999_999))
    async with ScriptedServer(lambda _: answers_of(data)) as bad, ScriptedServer(lambda _: "fine") as good:
        async with ModelPool("policy", settings(bad, good)) as pool:
            deadline = asyncio.get_running_loop().time() + 20
            answers = [await pool.complete(request(), session=f"s{n}", deadline=deadline) for n in range(8)]
        assert {answer.text for answer in answers} == {"fine"}
        notes = [note for answer in answers for note in answer.notes]
        assert notes and set(notes) == {"usage"} and pool.stats.odd == {"usage": len(bad.requests)}
        (sentence,) = odd_sentences(pool.stats.odd)
        assert sentence == f"{len(notes)} answers {ODDITIES['usage']} (usage, asked again)."
        async with ModelPool("policy", settings(bad, retry_limit=2)) as pool:
            with pytest.raises(ModelError, match="999999 tokens"):
                await pool.complete(request(), session="s", deadline=deadline)
        assert pool.stats.odd == {"usage": 3}


@pytest.mark.parametrize(("num_prompt", "error"), [(900, ModelError), (4096 - 32 - 10, ContextTooLong)])
async def test_refused_length_within_the_window_is_named_and_not_context_full(
    num_prompt: int, error: type[Exception]
) -> None:
    async with (
        ScriptedServer(["", *[Fault.too_long()] * 3]) as server,
        ModelPool("policy", settings(server, retry_limit=2)) as pool,
    ):
        await pool.check()
        deadline = asyncio.get_running_loop().time() + 20
        with pytest.raises(error) as caught:
            await pool.complete(request("x" * num_prompt), session="s", deadline=deadline)
    assert type(caught.value) is error
    if error is ModelError:
        assert "a prompt of 900 tokens with max_tokens = 32 fits the window of 4096 tokens" in str(caught.value)
        assert pool.stats.odd == {"window": 3}
