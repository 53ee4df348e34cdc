"""Read the log-probabilities of a prompt's token ids from a completion, as vLLM returns them (`prompt_logprobs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle.core.llm.failures import excerpt_of, malformed
from treadle.core.llm.wire import Answer, only_choice, parse_completion

_MAX_ROUNDING = 1e-6
"""Largest value above 0 that rounding may give a log-probability."""


def parse_scored(data: bytes, prompt: Sequence[int]) -> Answer:
    """Parse a completion like `parse_completion`, with the log-probabilities of its prompt's ids."""
    _, choice = only_choice(data)
    return replace(parse_completion(data), prompt_logprobs=_prompt_logprobs(choice.get("prompt_logprobs"), prompt))


def _prompt_logprobs(listed: object, prompt: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probability of each id of the prompt after the first.

    The server lists one object per id, which maps token ids to their values, and null for the first id.
    """
    if not isinstance(listed, list) or len(listed) != len(prompt):
        raise malformed("no_logprobs", f"the answer has no log-probabilities of its {len(prompt)} prompt ids")
    found = []
    for token, entry in zip(prompt[1:], listed[1:], strict=True):
        value = entry.get(str(token)) if isinstance(entry, dict) else None
        logprob = value.get("logprob") if isinstance(value, dict) else None
        if not isinstance(logprob, (int, float)) or isinstance(logprob, bool) or not logprob <= _MAX_ROUNDING:
            said = excerpt_of(logprob)
            raise malformed("no_logprobs", f"the answer's log-probability of prompt id {token} is {said}")
        found.append(min(float(logprob), 0.0))
    return tuple(found)
