"""Show a trajectory in a notebook: escaped, since models and web pages wrote its texts, and bounded in length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from treadle.core.untrusted.sanitize import sanitize

MOST_SEGMENTS = 100
MOST_SEGMENT_CHARS = 4_000


def trajectory_html(
    rollout: Mapping[str, Any],
    question: Mapping[str, Any],
    score: Mapping[str, Any] | None,
    segments: Sequence[Mapping[str, Any]],
) -> str:
    """Return HTML without scripts, links or attributes that come from the texts."""
    facts = {
        "question": question["question"],
        "gold answers": "; ".join(map(str, question["answers"] or ())),
        "model": rollout["model"],
        "status": rollout["status"],
    }
    if score is not None:
        facts |= {"prediction": score["prediction"], "correct": score["correct"]}
    head = "".join(f"<tr><th>{name}</th><td>{_shown(value)}</td></tr>" for name, value in facts.items())
    body = "".join(
        f"<tr><th>{_shown(one['kind'])}</th><td style='white-space: pre-wrap'>{_shown(one['text'])}</td></tr>"
        for one in segments[:MOST_SEGMENTS]
    )
    left = len(segments) - MOST_SEGMENTS
    more = f"<p>{left} more segments: use <code>.segments</code></p>" if left > 0 else ""
    return f"<table>{head}{body}</table>{more}"


def _shown(value: Any) -> str:
    """Return a value as escaped text, cut if it is long; "-" if there is none."""
    if value is None:
        return "-"
    text = str(value)
    cut = f"… ({len(text) - MOST_SEGMENT_CHARS} more characters)" if len(text) > MOST_SEGMENT_CHARS else ""
    return escape(sanitize(text[:MOST_SEGMENT_CHARS])) + cut
