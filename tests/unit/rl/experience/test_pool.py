"""Records of experience: duplicates, workspaces, what is found, and files of pools."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.experience.scripted_author import records

from treadle.core.errors import DataError
from treadle.core.store.storage import LocalStorage
from treadle.retriever.config import EncoderSettings
from treadle.rl.experience.finders import open_finder
from treadle.rl.experience.pool import ExperiencePool, shown_text
from treadle.rl.experience.record import Experience, read_records, write_records
from treadle.rl.experience.store import ExperienceStore

TRANSFER = Experience("strategy", "moving money between accounts", "check the balance of the source first")
REFUND = Experience("lesson", "refunding an order that was cancelled", "ask for its state, because it may be paid")


def test_near_duplicate_is_not_added_and_the_threshold_is_inclusive() -> None:
    pool = ExperiencePool("default", 0.8)
    words = ["a", "b", "c", "d", "e", "f", "g", "h"]
    assert pool.add(Experience("lesson", "w", " ".join(words)))
    # 8 of 10 words are common to both.
    assert not pool.add(Experience("lesson", "W", " ".join([*words[:-1], "x"])))
    assert pool.add(Experience("lesson", "w", " ".join([*words[:-2], "x", "y"])))
    assert len(pool) == 2


def test_only_records_of_the_workspace_are_found() -> None:
    other = Experience("strategy", "moving money between accounts", "never do it", "other")
    pool = ExperiencePool("default", 0.8, [TRANSFER, other, REFUND])
    assert pool.records == [TRANSFER, REFUND]
    assert pool.find("move money from my account", 3) == [TRANSFER]
    assert pool.find("an order and an account", 1) == pool.find("an order and an account", 3)[:1]
    assert pool.find("weather", 3) == [] and ExperiencePool("empty", 0.8).find("money", 3) == []


def test_vectors_find_records_that_share_no_word() -> None:
    finder = open_finder(EncoderSettings(type="hashing"))
    pool = ExperiencePool("default", 0.8, [REFUND, TRANSFER], finder)
    assert pool.find("move money from my account", 1) == [TRANSFER]
    assert len(pool.find("weather", 3)) == 2 and pool.find("", 3) == []
    assert pool.add(Experience("lesson", "weather", "take a coat"))
    assert pool.find("weather", 1)[0].advice == "take a coat"


def test_pool_finds_what_was_added_after_a_search() -> None:
    pool = ExperiencePool("default", 0.8, [TRANSFER])
    assert pool.find("order", 3) == []
    assert pool.add(REFUND)
    assert pool.find("order", 3) == [REFUND]


def test_records_of_stop_words_alone_are_never_found() -> None:
    assert ExperiencePool("default", 0.8, [Experience("lesson", "if it is", "do not")]).find("if it is", 3) == []


def test_shown_text_numbers_the_records() -> None:
    assert shown_text([TRANSFER, REFUND]).splitlines() == [f"1. {TRANSFER.text}", f"2. {REFUND.text}"]
    assert shown_text([]) == ""


def test_files_of_pools_are_read_back_and_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    given = [TRANSFER, Experience("comparison", "s", "a", "other", ("k1", "k2"), 7)]
    path.write_bytes(write_records(given))
    assert list(read_records([path])) == given
    for bad in (b"[]", b'{"kind": "rumour"}', b'{"kind": "lesson", "situation": "", "advice": "x"}', b"\xff"):
        path.write_bytes(write_records(given) + bad)
        with pytest.raises(DataError, match=r"pool.jsonl, line 3: this is no record of experience"):
            list(read_records([path]))
    with pytest.raises(DataError, match="cannot read the pool of experience .*gone"):
        list(read_records([tmp_path / "gone"]))


def test_batch_is_never_replaced_and_workspaces_are_apart(tmp_path: Path) -> None:
    store, other = (ExperienceStore(LocalStorage(tmp_path), "store", name) for name in ("one", "two"))
    first, second = records("x", workspace="one"), records("y", workspace="one")
    assert store.batch("step", 2) is None
    assert store.add_batch(first, "step", 2) == first == store.add_batch(second, "step", 2) == store.batch("step", 2)
    assert list(store.records()) == first and list(other.records()) == []
    store.cache("owner").append("unit", b"reply")
    assert store.cache("owner").get("unit") == b"reply" and other.cache("owner").get("unit") is None


def test_records_of_steps_are_those_before_a_step(tmp_path: Path) -> None:
    store = ExperienceStore(LocalStorage(tmp_path), "store", "default")
    for step in (4, 2):
        store.add_batch([Experience("lesson", f"s{step}", "a", step=step)], "step", step)
    assert [one.step for one in store.records()] == [2, 4]
    assert [one.step for one in store.records(before_step=4)] == [2]
