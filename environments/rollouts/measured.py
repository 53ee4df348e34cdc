"""Check whether the duration of a rollout is known."""

from __future__ import annotations

CLOCK_SLACK_S = 0.01
"""Tolerance by which the parts of a rollout may exceed its total time: they are measured with different clocks."""


def is_measured(seconds: float, model_seconds: float, tool_seconds: float) -> bool:
    """Return whether `seconds` of a row of `rollout_telemetry` is the duration of its rollout.

    For a resumed rollout the parts cover all attempts, but the total only the last one.
    """
    return model_seconds + tool_seconds <= seconds + CLOCK_SLACK_S
