"""A rollout is split into actions and observations."""

from __future__ import annotations

from treadle.agent.dialects.base import Segment
from treadle.environments.steps import ActionStep, steps_of


def split(*texts: tuple[str, str]) -> list[ActionStep]:
    return steps_of(Segment(kind, text, 0, 0) for kind, text in texts)


def test_each_action_has_what_followed_it() -> None:
    assert split(
        ("think", "<think>I look.</think>"), ("search", "<search>x</search>"), ("result", "<result>Ada</result>"),
        ("think", "<think>Yes.</think>\n"), ("answer", "<answer>Ada</answer>"),
    ) == [
        ActionStep("<think>I look.</think><search>x</search>", "<result>Ada</result>"),
        ActionStep("<think>Yes.</think>\n<answer>Ada</answer>"),
    ]  # fmt: skip


def test_frames_are_left_out_and_several_messages_are_one_observation() -> None:
    assert split(
        ("text", "act"), ("frame", "<|im_end|>\n<|im_start|>user\n"), ("tool", "one"), ("frame", "\n"), ("user", "two"),
        ("frame", "<|im_start|>assistant\n"), ("text", "more"),
    ) == [ActionStep("act", "one\ntwo"), ActionStep("more")]  # fmt: skip
    assert split() == [] and split(("frame", "x")) == []
    assert split(("user", "late")) == [ActionStep("", "late")]
