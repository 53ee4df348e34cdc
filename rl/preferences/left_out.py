"""Write the sentences of stage reports about items that a stage left out, with the reasons."""

from __future__ import annotations

from treadle.stages.report import Metrics, group

_REASONS = {
    "critic_window": "their prompts, with what the environment hides, exceed the context window of the critic",
    "reference_window": "their prompts exceed the context window of the reference",
    "too_long": "they are longer than max_tokens",
    "over_window": "they are longer than the context window of the model",
    "over_limit": "max_rows allows no more",
}


def left_out_sentences(metrics: Metrics, what: str, prefix: str = "left_out.") -> list[str]:
    """Return one sentence for each reason for leaving items out; `what` names the items in the plural."""
    counts = group(metrics, prefix)
    return [
        f"{count:,} {what} left out ({reason}): {_REASONS.get(reason, 'see the documentation')}."
        for reason, count in sorted(counts.items())
        if count
    ]
