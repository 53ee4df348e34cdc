"""Find the turns of a dialogue in the segments of a trajectory: who speaks, which turn it is, and its reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.dialects.base import RESULT, TEXT
from treadle.core.answers.extraction import SYSTEM_KINDS

SPEAKERS: Mapping[str, str] = {"user": "partner", "tool": "tool", "system": "system"}
"""Kind of a message between two turns of the policy -> who speaks."""
POLICY = "policy"


@dataclass(frozen=True, slots=True)
class TurnHead:
    """Heading above the segments that one speaker wrote without interruption.

    Attributes:
        speaker: "policy", or a value of `SPEAKERS`.
        numbers: Numbers of the policy's turns below this heading, from 1; empty for other speakers, or if unknown.
        rewards: Rewards of these turns, without turns that have no reward.
    """

    speaker: str
    numbers: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Name of the speaker, with the numbers of the turns if they are known."""
        if not self.numbers:
            return self.speaker
        first, last = self.numbers[0], self.numbers[-1]
        return f"{self.speaker}, turn {first}" if first == last else f"{self.speaker}, turns {first} to {last}"


def turn_heads(
    segments: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]] = (),
    rewards: Sequence[float | None] = (),
    num_turns: int = 0,
) -> dict[int, TurnHead]:
    """Return the headings of a dialogue: index of the first segment below it -> heading.

    Returns an empty dict for a trajectory that is no dialogue: a dialogue has messages of a partner, a tool or the
    system between turns of the policy, or rewards of turns.

    Args:
        segments: All segments; `start` and `end` index the ids of their sample.
        samples: The samples with their `turn_starts`. In text mode there are no `turn_starts`; then the policy's
            messages are numbered only if there are as many as turns, so that each belongs to one turn.
        rewards: Reward of each turn, None for a turn without one; may be empty.
        num_turns: Number of turns of the policy.
    """
    if not rewards and not any(segment["kind"] in SPEAKERS for segment in segments):
        return {}
    groups = _groups(segments)
    heads = {group.place: TurnHead(SPEAKERS[group.kind]) for group in groups if group.kind}
    own = [group for group in groups if not group.kind]
    for group, numbers in zip(own, _numbers(own, samples, num_turns), strict=True):
        known = (rewards[number - 1] for number in numbers if number <= len(rewards))
        heads[group.place] = TurnHead(POLICY, numbers, tuple(reward for reward in known if reward is not None))
    return heads


def trimmed_places(segments: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the indices of the segments before which the context was trimmed; without token ids they are unknown."""
    pairs = enumerate(zip(segments, segments[1:], strict=False), 1)
    return frozenset([place for place, (before, after) in pairs if after["start"] < before["end"]])


@dataclass(slots=True)
class _Group:
    """Consecutive segments of one speaker.

    `place` is the index of the first segment, `kind` the kind of its message (empty for the policy), and `end` the
    number of the last segment's sample with that segment's end offset in the sample's ids.
    """

    place: int
    kind: str
    end: tuple[int, int]


def _groups(segments: Sequence[Mapping[str, Any]]) -> list[_Group]:
    groups: list[_Group] = []
    trimmed = trimmed_places(segments)
    sample = 0
    is_open = False
    for place, segment in enumerate(segments):
        kind = segment["kind"]
        # At a trimmed place a new sample begins, whose offsets begin at 0 again.
        sample += place in trimmed
        offset = segment["end"]
        if kind in SYSTEM_KINDS:
            is_open = False
            if kind in SPEAKERS:
                groups.append(_Group(place, kind, (sample, offset)))
        elif is_open:
            groups[-1].end = (sample, offset)
        else:
            groups.append(_Group(place, "", (sample, offset)))
            is_open = True
    return groups


def _numbers(groups: Sequence[_Group], samples: Sequence[Mapping[str, Any]], num_turns: int) -> list[tuple[int, ...]]:
    """Return the numbers of the turns in each of the policy's groups; empty if unknown."""
    starts = [(place, start) for place, sample in enumerate(samples) for start in sample["turn_starts"]]
    if not starts:
        return [(number,) if len(groups) == num_turns else () for number in range(1, len(groups) + 1)]
    found: list[list[int]] = [[] for _ in groups]
    for number, start in enumerate(starts, 1):
        # A turn that wrote nothing has no segment; it is shown with the next one that did.
        after = next((place for place, group in enumerate(groups) if start < group.end), len(groups) - 1)
        if groups:
            found[after].append(number)
    return [tuple(numbers) for numbers in found]


def opening_text(row: Mapping[str, Any]) -> str:
    """Return the messages before the first turn, each after its role; empty if the row does not have them."""
    messages = orjson.loads(row.get("first_messages") or "[]")
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def has_markers(kind: str) -> bool:
    """Return whether the text of a segment is enclosed in markers named after its kind."""
    return kind != TEXT and kind not in SYSTEM_KINDS - {RESULT}
