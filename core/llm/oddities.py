"""Kinds of odd answers by name, and the sentences that report them at the end of a stage.

Answers of the kinds in `REFUSED` are malformed: the request is retried, elsewhere if possible, and the work stays
pending if that does not help. Answers of the kinds in `ACCEPTED` are kept. All are counted. The rules are in
`docs/behaviour/llm.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

ODDITIES = {
    "not_json": "were not JSON",
    "no_completion": "were no completion",
    "error": "were errors with HTTP status 200",
    "no_text": "had no text",
    "no_usage": "had no usable token counts",
    "bad_tool_calls": "had tool calls that are none",
    "bad_ids": "had token ids that are no ids",
    "no_logprobs": "lacked log-probabilities of their prompt, which a critic needs (vLLM: prompt_logprobs)",
    "unknown_ids": "had token ids beyond the tokenizer's vocabulary",
    "ids_not_text": "had token ids that do not spell their text",
    "usage": "had token counts that contradict their prompt, text or ids",
    "too_long": "were longer than max_tokens",
    "echo": "repeated their prompt",
    "window": "refused a prompt as too long that fits the model's window",
    "unusable": "could not be used for another reason",
    "content_filter": "were cut off by the service's content filter",
    "unknown_finish": "ended with an unknown finish_reason, taken as stop",
    "over_max_tokens": "were charged more tokens than max_tokens",
    "other_model": "name a model other than the requested one",
    "calls_in_text": "had tool calls in their text, which the server did not parse; they were read",
    "only_reasoning": "had reasoning and no text: raise max_tokens in the sampling, or lower the effort by extra_body",
    "bad_verdict": "were no valid verdict on the messages of a context; nothing was left out",
    "marker_restored": "lacked the stop string that ended them; it was restored",
}
"""Kind -> end of the sentence that reports such answers."""

ACCEPTED = frozenset(
    {"content_filter", "unknown_finish", "over_max_tokens", "other_model", "marker_restored", "calls_in_text"}
    | {"only_reasoning", "bad_verdict"}
)
REFUSED = frozenset(ODDITIES) - ACCEPTED


def odd_sentences(counts: Mapping[str, int]) -> list[str]:
    """Return one sentence for each kind that occurred, the most frequent first."""
    found = sorted(((count, name) for name, count in counts.items() if count), key=lambda item: (-item[0], item[1]))
    return [f"{count:,} answers {ODDITIES[name]} ({_treatment(name)})." for count, name in found]


def _treatment(name: str) -> str:
    return f"{name}, asked again" if name in REFUSED else f"{name}, kept"
