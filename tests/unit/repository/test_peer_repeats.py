"""Counting what a kill cost a tool, in benchmarks/peers."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parents[3] / "benchmarks" / "peers" / "repeats.py"
_SPEC = importlib.util.spec_from_file_location("peer_repeats", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
repeats = sys.modules["peer_repeats"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(repeats)


def test_only_requests_answered_before_the_kill_count_as_repeats() -> None:
    cost = repeats.cost_of([(0, 0), (0, 1), (1, 0)], [(1, 0), (1, 1), (2, 0)], range(3), num_items=3, num_calls=2)
    assert (cost.calls, cost.answered_before, cost.repeated) == (6, 3, 1)


def test_call_repeated_twice_counts_twice() -> None:
    assert repeats.cost_of([(0, 0)], [(0, 0), (0, 0)], [0], num_items=1, num_calls=1).repeated == 2


def test_call_repeated_before_the_kill_counts_as_answered_once() -> None:
    assert repeats.cost_of([(0, 0), (0, 0)], [], [0], num_items=1, num_calls=1).answered_before == 1


def test_lost_and_duplicated_rows_do_not_cancel_out() -> None:
    cost = repeats.cost_of([], [], [0, 0, 2, 2, 2], num_items=4, num_calls=1)
    assert (cost.rows_lost, cost.rows_doubled) == (2, 3)


def test_log_round_trips() -> None:
    calls = [(0, 0), (1234567, 2)]
    log = b"".join(map(repeats.line_of, calls))
    assert len(log) == len(calls) * repeats.LINE_BYTES
    assert repeats.calls_of(log) == calls
