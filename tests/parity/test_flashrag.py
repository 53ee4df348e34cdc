"""FlashRAG's retriever compared with Treadle's, over indexes that each side builds. Run by `make parity`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity.environment import answer_all, flashrag
from support.flashrag_parity import CHECKS, GOLDEN, check_same, open_prepared, ours, queries_of, theirs

from treadle.retriever.config import EncoderSettings, IndexSettings
from treadle.retriever.open_index import open_index


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a folder in which FlashRAG has just built everything, and its answers."""
    folder = tmp_path_factory.mktemp("flashrag")
    for name in ("corpus.jsonl", "job.json"):
        shutil.copy(GOLDEN / name, folder)
    shutil.copytree(GOLDEN / "model", folder / "model")
    return folder, answer_all(folder)


@pytest.mark.parametrize("check", CHECKS)
def test_prepared_indexes_answer_like_flashrag(
    check: Callable[..., None], fresh: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    check(*fresh, tmp_path)


def test_expected_answers_of_unit_tests_come_from_flashrag(fresh: tuple[Path, dict[str, Any]]) -> None:
    kept = json.loads((GOLDEN / "answers.json").read_text())
    assert kept.keys() == fresh[1].keys()
    for name, found in fresh[1].items():
        check_same([hits[:10] for hits in theirs(kept[name])], theirs(found))


def test_flashrag_reads_an_index_built_by_treadle(fresh: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = fresh[0]
    model = tmp_path / "e5-base-v2"
    model.symlink_to(folder / "model")
    encoder = EncoderSettings(type="model", model=str(model), device="cpu", passage_max_tokens=128)
    settings = IndexSettings(
        engine="dense", corpus=(folder / "corpus.jsonl",), encoder=encoder, cache_folder=tmp_path / "indexes"
    )
    job = json.loads((folder / "job.json").read_text())
    with open_index(settings) as index:
        job["treadle"] = {**job["e5"], "index": str(index.folder / "vectors.faiss")}
        (folder / "job.json").write_text(json.dumps(job))
        found = theirs(flashrag(folder, "ask", ["treadle"])["treadle"])
        check_same(ours(index, queries_of(folder, "e5")), found)
    with open_prepared(folder, "e5", tmp_path) as index:
        check_same(ours(index, queries_of(folder, "e5")), found)
