"""Vectors: how they are made from tokens, kept by faiss, and ranked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from treadle.core.errors import ConfigError, DataError
from treadle.retriever.config import DenseSettings, EncoderSettings
from treadle.retriever.dense.encoders import Encoder, HashingEncoder, normalized, pool
from treadle.retriever.dense.index import VectorRanker, factory, write_vectors

RNG = np.random.default_rng(7)


def vectors_of(count: int, dimension: int = 100) -> Any:
    return normalized(RNG.standard_normal((count, dimension), dtype=np.float32))


def ranker_of(folder: Path, rows: Any, shards: int = 1, **settings: Any) -> VectorRanker:
    paths = []
    for number, part in enumerate(np.array_split(np.asarray(rows, dtype=np.float32), shards)):
        paths.append(folder / f"{number}.npy")
        np.save(paths[-1], part)
    chosen = DenseSettings(**settings)
    write_vectors(folder / "v.faiss", paths, len(rows[0]), chosen)
    return VectorRanker(folder / "v.faiss", chosen)


def rows_of(ranking: list[tuple[int, float]]) -> list[int]:
    return [row for row, _ in ranking]


@pytest.mark.covers("evaluation-22")
def test_vectors_rank_by_inner_product(tmp_path: Path) -> None:
    ranker = ranker_of(tmp_path, [[1, 0], [0, 1], [0.6, 0.8]])
    (ranking,) = ranker.rank(np.array([[0.8, 0.6]], dtype=np.float32), 5)
    assert rows_of(ranking) == [2, 0, 1]
    assert [score for _, score in ranking] == pytest.approx([0.96, 0.8, 0.6])


@pytest.mark.covers("evaluation-22")
def test_pooling_excludes_padding_and_vectors_are_normalised() -> None:
    hidden = np.array([[[1, 2], [3, 4], [9, 9]]], dtype=np.float32)
    mask = np.array([[1, 1, 0]], dtype=np.float32)
    assert pool(hidden, mask, "mean").tolist() == [[2, 3]]
    assert pool(hidden, mask, "cls").tolist() == [[1, 2]]
    assert normalized(pool(hidden, mask, "mean"))[0].tolist() == pytest.approx([0.5547, 0.8321], abs=1e-4)
    assert normalized(np.zeros((1, 2), dtype=np.float32)).tolist() == [[0, 0]]


class Recorder(Encoder):
    """Keeps what it was given."""

    def __init__(self, **identity: Any) -> None:
        super().__init__(2, {"name": "recorder", "query_prefix": "query: ", "passage_prefix": "passage: ", **identity})
        self.texts: list[tuple[bool, str]] = []

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Any:
        self.texts += [(is_query, text) for text in texts]
        return np.full((len(texts), 2), 3, dtype=np.float32)


@pytest.mark.covers("evaluation-22")
def test_prefixes_reach_the_encoder_and_normalisation_is_optional() -> None:
    encoder = Recorder(normalize=True)
    assert encoder.encode_queries(["a"]).tolist()[0] == pytest.approx([0.5**0.5, 0.5**0.5])
    assert Recorder(normalize=False).encode_passages(["Vorna\nA town."]).tolist() == [[3, 3]]
    encoder.encode_passages(["Vorna\nA town."])
    assert encoder.texts == [(True, "query: a"), (False, "passage: Vorna\nA town.")]


def test_exact_index_is_a_native_faiss_file(tmp_path: Path) -> None:
    rows = vectors_of(100)
    ranker_of(tmp_path, rows, shards=3)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    faiss.write_index(index, str(tmp_path / "own.faiss"))
    assert (tmp_path / "v.faiss").read_bytes() == (tmp_path / "own.faiss").read_bytes()


@pytest.mark.covers("evaluation-23")
@pytest.mark.parametrize("storage", ["fp32", "fp16", "sq8"])
def test_exact_rankings_do_not_depend_on_the_batch(tmp_path: Path, storage: str) -> None:
    rows, queries = vectors_of(500), vectors_of(70)
    ranker = ranker_of(tmp_path, [*rows, *rows[:50]], storage=storage)
    alone = [ranker.rank(query[None], 7)[0] for query in queries]
    for size in (2, 19, 20, 70):
        batches = [queries[start : start + size] for start in range(0, len(queries), size)]
        assert [ranking for batch in batches for ranking in ranker.rank(batch, 7)] == alone


def test_equal_vectors_are_in_corpus_order_at_any_limit(tmp_path: Path) -> None:
    rows = np.concatenate([vectors_of(1)] * 300 + [vectors_of(5)])
    ranker = ranker_of(tmp_path, rows)
    for top_n in (1, 4, 50, 300):
        assert rows_of(ranker.rank(rows[:1], top_n)[0]) == list(range(top_n))
        assert [rows_of(found) for found in ranker.rank(rows[:25], top_n)] == [list(range(top_n))] * 25


@pytest.mark.covers("evaluation-21")
@pytest.mark.parametrize("settings", [{"type": "flat"}, {"type": "ivf", "ivf_lists": 8, "ivf_probes": 1}])
def test_no_row_is_repeated_or_invented(tmp_path: Path, settings: dict[str, Any]) -> None:
    rows = vectors_of(400)
    ranker = ranker_of(tmp_path, rows, **settings)
    for ranking in ranker.rank(rows[:30], 10_000):
        found = rows_of(ranking)
        assert len(set(found)) == len(found) and min(found) >= 0
        assert len(found) == 400 if settings["type"] == "flat" else 0 < len(found) < 400


@pytest.mark.parametrize("settings", [{"type": "hnsw"}, {"type": "ivf", "ivf_probes": 24}, {"storage": "sq8"}])
def test_approximate_indexes_nearly_match_the_exact_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    rows, queries = vectors_of(3000, 16), vectors_of(100, 16)
    for name in ("exact", "other"):
        (tmp_path / name).mkdir()
    exact = ranker_of(tmp_path / "exact", rows).rank(queries, 5)
    other = ranker_of(tmp_path / "other", rows, shards=2, **settings).rank(queries, 5)
    found = sum(len({*rows_of(one)} & {*rows_of(two)}) for one, two in zip(exact, other, strict=True))
    assert found / 500 >= (0.99 if settings.get("type") == "hnsw" else 0.9)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "Flat"),
        ({"storage": "fp16"}, "SQfp16"),
        ({"type": "hnsw", "hnsw_links": 16, "storage": "sq8"}, "HNSW16,SQ8"),
        ({"type": "ivf"}, "IVF4000,Flat"),
        ({"type": "ivf", "ivf_lists": 10**9}, "IVF25641,Flat"),
    ],
)
def test_settings_become_faiss_factory_names(settings: dict[str, Any], name: str) -> None:
    assert factory(DenseSettings(**settings), 1_000_000) == name


def test_invalid_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a readable faiss index"):
        VectorRanker(tmp_path / "v", DenseSettings())
    faiss.write_index(faiss.IndexFlatL2(2), str(tmp_path / "l2"))
    with pytest.raises(DataError, match="inner product"):
        VectorRanker(tmp_path / "l2", DenseSettings())


def test_missing_gpu_is_named(tmp_path: Path) -> None:
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        return
    with pytest.raises(ConfigError, match=r"dense.device is cuda, but this faiss finds no GPU"):
        ranker_of(tmp_path, vectors_of(3), device="cuda")


def test_hashed_words_are_the_same_everywhere() -> None:
    encoder = HashingEncoder(EncoderSettings(type="hashing", dimension=8))
    first, second, blank = encoder.encode_queries(["Runners ran", "runner RAN!", "the"])
    assert first.tolist() == second.tolist() and not blank.any()
    assert encoder.encode_passages([]).shape == (0, 8)
