"""Keys take turns; see docs/behaviour/web.md, Providers."""

from __future__ import annotations

import logging

import pytest

from treadle.core.errors import ConfigError, ToolError
from treadle.web.key_ring import Key, KeyRing

ENVIRON = {"KEY_A": "secret-a-111", "KEY_B": "secret-b-222", "KEY_C": "secret-c-333"}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def ring(*names: str) -> tuple[KeyRing, Clock]:
    clock = Clock()
    return KeyRing(names, ENVIRON, clock=clock), clock


def taken(keys: KeyRing, times: int) -> list[str]:
    found = [keys.take() for _ in range(times)]
    return ["" if key is None else key.name for key in found]


def test_keys_are_used_in_turn() -> None:
    keys, _ = ring("KEY_A", "KEY_B", "KEY_C")
    assert taken(keys, 7) == ["KEY_A", "KEY_B", "KEY_C", "KEY_A", "KEY_B", "KEY_C", "KEY_A"]


def test_resting_key_is_skipped_until_its_time() -> None:
    keys, clock = ring("KEY_A", "KEY_B")
    first = keys.take()
    assert first is not None
    keys.pause(first, 30.0)
    assert taken(keys, 3) == ["KEY_B", "KEY_B", "KEY_B"] and keys.ready_at() == clock.now
    clock.now += 29.9
    assert taken(keys, 1) == ["KEY_B"]
    clock.now += 0.1
    assert sorted(taken(keys, 2)) == ["KEY_A", "KEY_B"]


def test_ring_reports_its_earliest_ready_time_if_all_keys_rest() -> None:
    keys, clock = ring("KEY_A", "KEY_B")
    for seconds in (60.0, 5.0):
        key = keys.take()
        assert key is not None
        keys.pause(key, seconds)
    assert keys.take() is None and keys.ready_at() == clock.now + 5.0
    clock.now = keys.ready_at()
    assert taken(keys, 1) == ["KEY_B"]


def test_longest_of_several_rests_counts() -> None:
    keys, clock = ring("KEY_A")
    key = keys.take()
    assert key is not None
    keys.pause(key, 3_600.0)
    keys.pause(key, 1.0)
    assert keys.ready_at() == clock.now + 3_600.0


def test_refused_key_is_dropped_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    keys, _ = ring("KEY_A", "KEY_B")
    key = keys.take()
    assert key is not None
    with caplog.at_level(logging.WARNING):
        keys.drop(key, "HTTP 403: Unauthorized.\x1b[2J")
        keys.drop(key, "HTTP 403: Unauthorized.")
    assert len(caplog.records) == 1 and "KEY_A" in caplog.text and "\x1b" not in caplog.text
    assert taken(keys, 2) == ["KEY_B", "KEY_B"] and len(keys) == 1


def test_empty_ring_names_its_variables_but_not_their_values() -> None:
    keys, _ = ring("KEY_A", "KEY_B")
    for _ in range(2):
        key = keys.take()
        assert key is not None
        keys.drop(key, "refused")
    for asked in (keys.take, keys.ready_at):
        with pytest.raises(ToolError, match="KEY_A, KEY_B") as caught:
            asked()
        assert not caught.value.retryable and "secret" not in str(caught.value)


def test_provider_without_keys_has_one_empty_key() -> None:
    keys, _ = ring()
    key = keys.take()
    assert key == Key("", "")
    keys.drop(key, "HTTP 403")
    with pytest.raises(ToolError, match="search.formats"):
        keys.take()


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "schlüssel"])
def test_variable_must_contain_a_usable_key(value: str) -> None:
    with pytest.raises(ConfigError, match="KEY_A") as caught:
        KeyRing(["KEY_A"], {"KEY_A": value} if value else {}, clock=Clock())
    assert not value or value not in str(caught.value)


def test_key_does_not_show_its_value() -> None:
    assert "secret" not in repr(Key("KEY_A", "secret-a-111"))
