"""Log-probabilities of a prompt: how they are asked for, and that no other numbers pass for them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from treadle.core.llm.config import Sampling
from treadle.core.llm.failures import Failure
from treadle.core.llm.oddities import REFUSED
from treadle.core.llm.prompt_scores import parse_scored
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.llm.wire import completion_body

PROMPT = (7, 8, 9)
LISTED = [None, {"8": {"logprob": -0.25, "rank": 1}}, {"4": {"logprob": -0.1}, "9": {"logprob": -9999.0}}]


def reply(listed: Any) -> bytes:
    choice = {"index": 0, "text": "a", "token_ids": [1], "finish_reason": "length", "prompt_logprobs": listed}
    return orjson.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


def request(*, scores_prompt: bool) -> CompletionRequest:
    return CompletionRequest(list(PROMPT), 1, Sampling(temperature=0.0), (), 0, scores_prompt)


def test_log_probabilities_are_asked_for_only_if_needed() -> None:
    asked = orjson.loads(completion_body("m", request(scores_prompt=True), True))
    plain = orjson.loads(completion_body("m", request(scores_prompt=False), True))
    assert asked.pop("prompt_logprobs") == 0 and asked == plain


def test_log_probabilities_are_those_of_the_prompts_own_ids() -> None:
    assert parse_scored(reply(LISTED), PROMPT).prompt_logprobs == (-0.25, -9999.0)
    rounded = [None, {"8": {"logprob": 1e-7}}, {"9": {"logprob": 0}}]
    assert parse_scored(reply(rounded), PROMPT).prompt_logprobs == (0.0, 0.0)


@pytest.mark.parametrize(
    "listed",
    [
        None,
        LISTED[:2],
        [None, {"8": {"logprob": -0.2}}, {"4": {"logprob": -0.1}}],
        [None, {"8": {"logprob": 0.5}}, LISTED[2]],
        [None, {"8": {"logprob": True}}, LISTED[2]],
        [None, {"8": {"logprob": "-1"}}, LISTED[2]],
        [None, None, LISTED[2]],
        [None, {"8": -0.2}, LISTED[2]],
    ],
)
def test_other_values_are_malformed(listed: Any) -> None:
    with pytest.raises(Failure) as caught:
        parse_scored(reply(listed), PROMPT)
    assert (caught.value.kind, caught.value.oddity) == ("malformed", "no_logprobs") and "no_logprobs" in REFUSED


def test_scored_completion_survives_the_journal() -> None:
    made = Completion("a", (1,), "length", None, 3, 1, "u", 0.1, 0, prompt_logprobs=(-0.25, -1.5))
    assert Completion.from_json(made.to_json()) == made
