"""Split a rollout into steps: what the agent wrote, and what the environment replied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treadle.agent.dialects.base import FRAME, Segment
from treadle.agent.tools.outcome import clip
from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.untrusted.prompt_text import as_data


@dataclass(frozen=True, slots=True)
class ActionStep:
    """One action of an agent, and the observation that followed; empty if the rollout ended with the action."""

    action: str
    observation: str = ""


def steps_of(segments: Iterable[Segment]) -> list[ActionStep]:
    """Return the steps of a rollout, without control tokens between messages and without outer white space."""
    steps: list[ActionStep] = []
    action: list[str] = []
    observation: list[str] = []
    for segment in segments:
        if segment.kind == FRAME:
            continue
        if segment.kind in SYSTEM_KINDS:
            observation.append(segment.text)
            continue
        if observation:
            steps.append(_step(action, observation))
            action, observation = [], []
        action.append(segment.text)
    if action or observation:
        steps.append(_step(action, observation))
    return steps


def shown_steps(segments: Iterable[Segment], max_chars: int, max_steps: int) -> list[dict[str, str]]:
    """Return the steps of a rollout as objects for a prompt, safe to insert: `action` and `observation`.

    Each text has at most `max_chars` characters, head and tail kept. Of more than `max_steps` steps, those in the
    middle are replaced by one without action, whose observation gives their number.
    """
    steps = steps_of(segments)
    if (num_left_out := len(steps) - max_steps) > 0:
        first = max_steps - max_steps // 2
        note = ActionStep("", f"({num_left_out} steps are left out here)")
        steps = [*steps[:first], note, *steps[first + num_left_out :]]
    return [
        {"action": as_data(clip(one.action, max_chars)), "observation": as_data(clip(one.observation, max_chars))}
        for one in steps
    ]


def _step(action: Sequence[str], observation: Sequence[str]) -> ActionStep:
    return ActionStep("".join(action).strip(), "\n".join(part.strip() for part in observation))
