"""Invariants of a trajectory made by an operator."""

from __future__ import annotations

import pytest
from support.rollouts.operator_bench import World

from treadle.agent.dialects.base import RESULT, render
from treadle.agent.trajectory import Trajectory
from treadle.datagen.operators.context import OperatorContext
from treadle.datagen.operators.rejection import EditRejected

FINISH = "<think>At last.</think><answer>\\boxed{new}</answer>"
NEW_STEP = "<think>Shorter.</think><search>Y</search>"


def check_ids(trajectory: Trajectory, world: World) -> None:
    """Ids, origins, segments and text tell the same story."""
    assert render(trajectory.segments) == trajectory.text
    if world.tokenizer is None:
        assert trajectory.samples[0].ids == []
        return
    assert len(trajectory.samples[0].ids) == len(trajectory.samples[0].origins)
    assert world.tokenizer.decode(trajectory.samples[0].ids) == trajectory.text
    for segment in trajectory.segments:
        origins = set(trajectory.samples[0].origins[segment.start : segment.end])
        assert origins <= ({0} if segment.kind == RESULT else {1, 2})


def check_prefix(trajectory: Trajectory, parent: Trajectory, num_segments: int, world: World) -> None:
    """Check that the parent's first segments are kept byte for byte and id for id, with their origins."""
    kept = render(parent.segments[:num_segments])
    assert trajectory.text.startswith(kept)
    if world.tokenizer is not None and num_segments:
        end = parent.segments[num_segments - 1].end
        assert trajectory.samples[0].ids[:end] == parent.samples[0].ids[:end]
        assert trajectory.samples[0].origins[:end] == parent.samples[0].origins[:end]
    check_ids(trajectory, world)


def check_contexts(world: World, trajectory: Trajectory, first: str) -> None:
    """Each request of the policy is prompt and trajectory so far, as an unbroken rollout would have sent it."""
    requests = world.scripts["policy"].requests
    assert requests
    if world.tokenizer is None:
        head = str(requests[0].prompt).removesuffix(first)
        assert head + first == requests[0].prompt
        assert all(str(request.prompt).startswith(head) for request in requests)
        assert all((head + trajectory.text).startswith(str(request.prompt)) for request in requests)
        return
    for request in requests:
        assert [*trajectory.samples[0].prompt_ids, *trajectory.samples[0].ids][: len(request.prompt)] == request.prompt
    assert world.scripts["policy"].prompts()[0].endswith(first)


async def rejected(operator: object, bench: OperatorContext) -> EditRejected:
    with pytest.raises(EditRejected) as error:
        await operator.apply(bench)  # type: ignore[attr-defined]
    return error.value
