"""Recall of supporting documents, hop by hop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from treadle.core.errors import DataError
from treadle.demo.world_files import write_world
from treadle.retriever.config import IndexSettings
from treadle.retriever.open_index import open_index
from treadle.retriever.recall import RecallCase, measure_recall, read_cases


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def index_settings(folder: Path, texts: list[str], **more: Any) -> IndexSettings:
    corpus = write(folder / "corpus.jsonl", [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)])
    return IndexSettings.model_validate({"corpus": corpus, "cache_folder": folder / "cache", **more})


def test_recall_is_reported_for_each_hop_and_all_together(tmp_path: Path) -> None:
    texts = ["tower vorna", "tower vorna ilme ilme ilme", "gate ilme", "hill"]
    cases = [
        RecallCase("vorna", ("d0", "d1")),  # Found first and second.
        RecallCase("gate", ("d2", "d3")),  # The second document shares no word.
        RecallCase("hill", ("d3",)),
    ]
    with open_index(index_settings(tmp_path, texts)) as index:
        recall = measure_recall(index, cases * 30, ks=(1, 2))
    assert (recall.num_cases, recall.num_by_hop) == (90, {1: 90, 2: 60})
    assert recall.by_hop == {1: {1: 1.0, 2: 1.0}, 2: {1: 0.0, 2: 0.5}}
    assert recall.all_hops == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}


def test_passage_counts_as_its_document(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(30))
    with open_index(index_settings(tmp_path, [text, "hill"], chunk_words=10)) as index:
        assert measure_recall(index, [RecallCase("w25", ("d0",))], ks=(1,)).all_hops == {1: 1.0}
        with pytest.raises(DataError, match="no question has known supporting documents"):
            measure_recall(index, [])


def test_questions_without_supporting_documents_are_skipped_and_counted(tmp_path: Path) -> None:
    cases = [RecallCase("hill", ("d1",)), RecallCase("How much is 2 plus 3?", ()), RecallCase("gate", ("d0",))]
    with open_index(index_settings(tmp_path, ["gate", "hill"])) as index:
        recall = measure_recall(index, cases, ks=(1,))
        with pytest.raises(DataError, match="no question has known supporting documents"):
            measure_recall(index, cases[1:2])
    assert (recall.num_cases, recall.num_skipped) == (2, 1)
    assert recall.by_hop == {1: {1: 1.0}} and recall.all_hops == {1: 1.0}


def test_documents_missing_from_the_corpus_are_refused_not_counted_as_misses(tmp_path: Path) -> None:
    cases = [RecallCase("hill", ("d1",)), RecallCase("gate", ("d0", "d7")), RecallCase("far", ("d8",))]
    said = r"corpus lacks 2 of the supporting documents, the first is 'd7' .*'gate'"
    with open_index(index_settings(tmp_path, ["gate", "hill"])) as index, pytest.raises(DataError, match=said):
        measure_recall(index, cases)


def test_sample_world_files_can_be_measured_directly(tmp_path: Path) -> None:
    world = write_world(tmp_path, documents=200, questions=30, heldout_questions=10, tiers=(0, 1))
    settings = IndexSettings(corpus=(world.corpus,), cache_folder=tmp_path / "cache")
    cases = list(read_cases(world.questions))
    with open_index(settings) as index:
        recall = measure_recall(index, cases, ks=(1, 4))
    assert recall.num_cases + recall.num_skipped == 40 and recall.num_skipped > 0
    # What a question names is found by its name; what only another document names is not.
    assert recall.by_hop[1][4] > 0.9 > recall.by_hop[2][4]


def test_cases_are_read_and_bad_ones_refused_with_their_row(tmp_path: Path) -> None:
    good = [{"question": "q", "supports": ["a", 7]}, {"query": "r", "supports": ["b"]}]
    without = [{"question": "s", "supports": []}, {"question": "t", "supports": None}, {"question": "u"}]
    assert list(read_cases(write(tmp_path / "c.jsonl", [*good, *without]))) == [
        RecallCase("q", ("a", "7")), RecallCase("r", ("b",)), *(RecallCase(query, ()) for query in "stu"),
    ]  # fmt: skip
    for bad, match in (
        ({"supports": ["a"]}, "row 3: no text in question or query"),
        ({"question": " ", "supports": ["a"]}, "row 3: no text in question or query"),
        ({"question": "q", "supports": "a"}, "row 3: supports must be a list"),
        ({"question": "q", "supports": ["a", ""]}, "row 3: supports must be a list"),
        ({"question": "q", "supports": [True]}, "row 3: supports must be a list"),
        ({"question": "q", "supports": [{"title": "a"}]}, "row 3: supports must be a list"),
    ):
        with pytest.raises(DataError, match=match):
            list(read_cases(write(tmp_path / "c.jsonl", [*good, bad])))


def test_file_without_supporting_documents_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [{"question": "q", "answer": "5"}, {"question": "r", "supports": []}])
    with pytest.raises(DataError, match=r"c\.jsonl: no question names .*add `supports`"):
        list(read_cases(path))
