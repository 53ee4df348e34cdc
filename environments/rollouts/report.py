"""Turn the metrics of finished rollouts into warnings: unreadable output and odd answers.

An accuracy of 0 may be the agent's fault. It may also come from a server that leaves out stop strings, a model that
does not know the tags, or a wrong chat template. In these cases no model output is a call or an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from treadle.core.llm.oddities import odd_sentences
from treadle.environments.settings import DEFAULT_TYPE

ODD = "odd_"
"""Prefix of the metrics that count odd answers of model servers by kind; see `treadle.core.llm.oddities`."""
_FEW = 8
"""With fewer rollouts than this, all may end without an answer by chance."""
_STATUS = "status_"


def unreadable_output_warnings(
    metrics: Mapping[str, Any], noun: str = "rollouts", environment: str = DEFAULT_TYPE
) -> list[str]:
    """Return a sentence with likely causes if no rollout has an answer, or none has even a call; else nothing.

    `metrics` are `num_rollouts`, `calls_requested` and `status_<name>`. Failed rollouts do not count. What the
    model should have written is known for the environment `question` only.
    """
    statuses = {name.removeprefix(_STATUS): metrics[name] for name in metrics if name.startswith(_STATUS)}
    num_with_output = metrics["num_rollouts"] - statuses.get("failed", 0)
    if statuses.get("answered") or statuses.get("finished") or not num_with_output:
        return []
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(statuses.items()) if count or name == "answered")
    if environment != DEFAULT_TYPE:
        return [
            f"{environment} ended none of {num_with_output:,} {noun} ({counts}). The limits of turns or tokens may be "
            "too low; look at one with treadle show."
        ]
    if not metrics["calls_requested"]:
        return [
            f"No output of the model could be parsed in {num_with_output:,} {noun}: no call, no answer ({counts}). "
            "The model may not know the tags, its chat template or tokenizer may be another model's, or its server may "
            "cut answers in the wrong place; look at one with treadle show."
        ]
    if num_with_output < _FEW:
        return []
    return [
        f"None of {num_with_output:,} {noun} ended with an answer, though tools were called ({counts}). The limits "
        "of turns, calls or tokens may be too low, or the model does not close its answers; look at one with treadle "
        "show."
    ]


def in_environment(sentences: Iterable[str], name: str, *, is_mixture: bool) -> list[str]:
    """Return sentences about rollouts in an environment; in a mixture each begins with the environment's name."""
    return [f"Environment {name}: {sentence}" if is_mixture else sentence for sentence in sentences]


def odd_warnings(metrics: Mapping[str, Any]) -> list[str]:
    """Return warnings about odd answers of model servers; an empty list without such answers."""
    return odd_sentences({name.removeprefix(ODD): count for name, count in metrics.items() if name.startswith(ODD)})
