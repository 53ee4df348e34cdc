"""A training's events show whether it learnt anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.engines.events import EventFile
from treadle.core.engines.weights.change import had_no_gradient


@pytest.mark.parametrize(
    ("attempts", "is_dead"),
    [
        ([(0, {1: 0.0, 2: 0.0})], True),
        ([(0, {1: 0.0, 2: 1e-9})], False),
        ([(0, {1: 0.0, 2: None})], False),
        ([(0, {})], False),
        # The last steps of a training that learnt before it was cut off.
        ([(0, {1: 0.5, 2: 0.0}), (2, {3: 0.0})], False),
        # What learnt something was lost, and learnt nothing when it was done again.
        ([(0, {1: 0.0, 2: 0.5}), (1, {2: 0.0})], True),
        ([(0, {1: 0.5}), (0, {1: 0.0})], True),
    ],
)
def test_training_without_any_gradient_is_detected(
    tmp_path: Path, attempts: list[tuple[int, dict[int, float | None]]], is_dead: bool
) -> None:
    events = EventFile(tmp_path / "events.jsonl")
    for resumed, norms in attempts:
        events.write("begin", resumed_step=resumed)
        for step, norm in norms.items():
            events.write("step", step=step, grad_norm=norm)
    with events.path.open("ab") as file:
        file.write(b'{"event": "st')
    assert had_no_gradient(events.path) is is_dead
