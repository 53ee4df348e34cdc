"""The worked example of attribution: four rollouts of a task, a model that labels them, the advantages they get.

No pytest needed: engines' environments run it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from support.servers.scripted_server import Codec, RecordedRequest

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Segment
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.token_ids import ORIGIN_SAMPLED, ORIGIN_SYSTEM
from treadle.agent.trajectory import Sample, Trajectory
from treadle.rl.credit.attribution import AttributionCredit
from treadle.rl.credit.base import CreditGroup, TurnText
from treadle.rl.groups.group import Group, GroupTrajectory
from treadle.rl.groups.samples import GroupSample
from treadle.rl.rewards.base import GroupItem
from treadle.rl.rewards.rewarded import RewardedItem

FLAGS = ("GBG", "BB", "G", "BGGG")
"""Label of each step of each rollout: good or bad."""
REWARDS = (1.0, 0.0, 1.0, 0.0)
DECOUPLED = [[1.0383, 0.9574, 1.0809], [-1.2471, -1.1235], [1.0809], [-0.8807, -0.7572, -0.8381, -0.9191]]
"""Advantages with the default settings, to four digits."""
ON_ALL_STEPS = [[3.0383, 1.9574, 1.0809], [-2.2471, -1.1235], [1.0809], [-3.8807, -2.7572, -1.8381, -0.9191]]
ALLOCATED = [[1.0946, 1.0427, 1.0519], [-1.2172, -1.1086], [1.1436], [-1.2662, -1.1366, -1.0911, -1.0455]]
ONLY_LABELS = [[0.3834, -0.4260, 0.8094], [-2.4709, -1.2354], [0.8094], [1.1928, 2.4283, 1.6189, 0.8094]]
POOLED = [[1.0408, 0.9592, 1.0816], [-1.2449, -1.1225], [1.0816], [-0.8775, -0.7551, -0.8367, -0.9184]]
BY_LENGTH = [[0.5995, 0.5528, 0.6241], [-0.8818, -0.7945], [1.0809], [-0.4404, -0.3786, -0.4191, -0.4595]]


def reply(flags: str, first: int = 1) -> str:
    """Return a reply that labels steps, numbered from `first`."""
    words = {"G": "GOOD", "B": "BAD"}
    lines = [
        f"Step {number} analysis: it is so.\nStep {number} judgment: {words[flag]}"
        for number, flag in enumerate(flags, first)
    ]
    return "\n".join(lines)


def label_actions(recorded: RecordedRequest) -> str:
    """Label the steps of a request: those whose action says `useful` are good."""
    assert recorded.messages is not None
    steps = orjson.loads(recorded.messages[-1]["content"])["steps"]
    return reply("".join("G" if "useful" in step["action"] else "B" for step in steps))


def turns_of(flags: str) -> list[TurnText]:
    """Return turns that `label_actions` labels so."""
    actions = {"G": "a useful call", "B": "an idle call"}
    return [TurnText(f"{actions[flag]} {number}", f"result {number}") for number, flag in enumerate(flags, 1)]


def rewarded_item(reward: float | None, num_turns: int) -> RewardedItem:
    """Return the reward of a rollout; None if it has none."""
    return RewardedItem(
        reward=0.5 if reward is None else reward,
        scored=reward is not None,
        parts={},
        notes=(),
        score=reward,
        answer="",
        scorer="environment",
        status="finished",
        tool_calls=num_turns,
        tool_failures=0,
        length=10 * num_turns,
    )


def credit_group(
    flags: Sequence[str] = FLAGS, rewards: Sequence[float | None] = REWARDS, *, query: str = "Do it.", **keys: Any
) -> CreditGroup:
    """Return a group whose steps get these labels from `label_actions`."""
    return CreditGroup(
        task=Task(f"key of {query}", query, payload={"task_id": "seed-7"}),
        items=[GroupItem.from_text("", dialect=TOOL_DIALECT, num_turns=len(own)) for own in flags],
        rewards=[rewarded_item(reward, len(own)) for reward, own in zip(rewards, flags, strict=True)],
        turns=[turns_of(own) for own in flags],
        **keys,
    )


def attribution(url: str, **keys: Any) -> AttributionCredit:
    """Return the rule with a model at this server."""
    model = {"model": "scripted", "endpoints": [{"url": url}], "retry_limit": 0, "outage_wait_s": 0.0}
    return AttributionCredit.model_validate({"type": "attribution", "model": model, "pause_s": 0.0, **keys})


def group_of(codec: Codec) -> Group:
    """Return the example's group with token ids, as rollouts make them."""
    task = Task("key", "Do it.", domain="task", payload={"task_id": "seed-7"})
    made = [_trajectory(session, flags, codec) for session, flags in enumerate(FLAGS)]
    return Group("1-0", task, made)


def _trajectory(session: int, flags: str, codec: Codec) -> GroupTrajectory:
    ids: list[int] = []
    origins: list[int] = []
    starts, segments = [], []
    for turn in turns_of(flags):
        starts.append(len(ids))
        for kind, text, origin in (("text", turn.action, ORIGIN_SAMPLED), ("user", turn.observation, ORIGIN_SYSTEM)):
            own = codec.encode(text)
            segments.append(Segment(kind, text, len(ids), len(ids) + len(own)))
            ids += own
            origins += [origin] * len(own)
    prompt = codec.encode("Do it.")
    whole = Trajectory("finished", "", segments, [Sample(prompt, ids, origins, starts)], [], len(starts))
    sample = GroupSample(prompt, ids, origins, [-0.5 * origin for origin in origins], starts)
    return GroupTrajectory(session, (sample,), whole, None, 0, 7)
