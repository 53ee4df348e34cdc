"""Indexes from corpus to answer: equal for batches, exact about their making, resumed where they were cut off."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.tiny_bert import write_tiny_bert

import treadle.retriever.dense.embedding as embedding
import treadle.retriever.open_index as opening
from treadle.core.errors import ConfigError, DataError, ModelError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.environments.question.index_entry import INDEX_STAGE
from treadle.retriever import bm25
from treadle.retriever.config import IndexSettings
from treadle.retriever.corpus import Chunking, Document, read_corpus, split
from treadle.retriever.dense.encoders import Encoder, HashingEncoder
from treadle.retriever.hybrid import reciprocal_ranks
from treadle.retriever.index import Index
from treadle.retriever.open_index import open_index

HASHING = {"type": "hashing", "dimension": 64}
ENGINES = ("bm25", "dense", "hybrid")
COLOURS = ("red", "blue", "green", "white", "black", "brown", "grey")
TEXTS = [f"{COLOURS[n % 7]} tower {n % 5} near {COLOURS[n % 3]} gate {n}" for n in range(60)]


def settings_for(folder: Path, texts: Sequence[str] = TEXTS, **settings: Any) -> IndexSettings:
    rows = [{"id": f"d{number}", "title": "", "text": text} for number, text in enumerate(texts)]
    folder.mkdir(exist_ok=True)
    (folder / "corpus.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    given = {"corpus": folder / "corpus.jsonl", "cache_folder": folder / "cache", "encoder": HASHING, **settings}
    return IndexSettings.model_validate(given)


def ids(index: Index, query: str, top_n: int) -> list[str]:
    return [hit.id for hit in index.search(query, top_n)]


@pytest.mark.covers("evaluation-23")
@pytest.mark.parametrize("engine", ENGINES)
def test_batch_answers_equal_single_queries(tmp_path: Path, engine: str) -> None:
    queries = [f"{COLOURS[n % 7]} gate {n}" for n in range(45)] + ["", "zzz", "tower"]
    with open_index(settings_for(tmp_path, engine=engine)) as index:
        alone = [index.search(query, 6) for query in queries]
        assert any(alone)
        for size in (1, 2, 7, 33, 48):
            batches = [queries[start : start + size] for start in range(0, len(queries), size)]
            assert [hits for batch in batches for hits in index.search_batch(batch, 6)] == alone
        assert index.search_batch([], 6) == []


@pytest.mark.covers("evaluation-21")
@pytest.mark.parametrize("engine", ["dense", "hybrid"])
def test_limit_beyond_the_corpus_returns_all_of_it_once(tmp_path: Path, engine: str) -> None:
    with open_index(settings_for(tmp_path, ["red tower", "blue gate", "white hill"], engine=engine)) as index:
        assert ids(index, "blue gate", 5)[0] == "d1"
        assert sorted(ids(index, "blue gate", 5)) == sorted(ids(index, "blue gate", 10**6)) == ["d0", "d1", "d2"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("query", "top_n"), [("", 4), (" \n\t", 4), ("tower", 0), ("tower", -3)])
def test_blank_query_and_zero_limit_find_nothing(tmp_path: Path, engine: str, query: str, top_n: int) -> None:
    with open_index(settings_for(tmp_path, ["red tower"], engine=engine)) as index:
        assert index.search(query, top_n) == []
        assert [len(hits) for hits in index.search_batch([query, "tower"], top_n)] == [0, 1 if top_n > 0 else 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_first_results_are_the_same_for_any_limit(tmp_path: Path, engine: str) -> None:
    with open_index(settings_for(tmp_path, engine=engine)) as index:
        everything = ids(index, "red tower 3", 60)
        assert all(ids(index, "red tower 3", top_n) == everything[:top_n] for top_n in range(1, 61))


@pytest.mark.parametrize("engine", ENGINES)
def test_hostile_queries_are_answered(tmp_path: Path, engine: str) -> None:
    with open_index(settings_for(tmp_path, engine=engine)) as index:
        for query in ("\ud800 tower", "tower\0", "tower " * 2_000_000, "(a OR b) AND *:*", "\U0001f6f6"):
            assert len(index.search(query, 3)) <= 3


@pytest.mark.covers("evaluation-24")
@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"encoder": {**HASHING, "query_prefix": "query: "}}, "encoder.query_prefix"),
        ({"encoder": {**HASHING, "passage_prefix": "passage: "}}, "encoder.passage_prefix"),
        ({"encoder": {**HASHING, "normalize": False}}, "encoder.normalize"),
        ({"dense": {"storage": "sq8"}}, "dense.storage"),
        ({"chunk_words": 20}, "chunk_words"),
        ({"corpus_sha256": ("0" * 64,)}, "corpus_sha256"),
    ],
)
def test_index_built_with_other_settings_is_refused_by_field(tmp_path: Path, other: dict[str, Any], field: str) -> None:
    settings = settings_for(tmp_path, engine="dense")
    with open_index(settings) as built:
        folder = built.folder
    with open_index(settings.model_copy(update={"index_folder": folder})) as index:
        assert index.info.fingerprint == built.info.fingerprint
    with pytest.raises(ConfigError, match=rf"built with other settings .*{field}"):
        open_index(settings_for(tmp_path, engine="dense", index_folder=folder, **other))


@pytest.mark.covers("evaluation-24")
def test_index_with_another_pooling_is_refused(tmp_path: Path) -> None:
    model = {"type": "model", "model": str(write_tiny_bert(tmp_path / "model")), "device": "cpu"}
    prefixes = {"query_prefix": "", "passage_prefix": ""}
    mean, cls = ({**model, **prefixes, "pooling": pooling} for pooling in ("mean", "cls"))
    with open_index(settings_for(tmp_path, engine="dense", encoder=mean)) as built:
        folder = built.folder
    with pytest.raises(ConfigError, match=r"built with other settings .*encoder.pooling: 'mean' -> 'cls'"):
        open_index(settings_for(tmp_path, engine="dense", encoder=cls, index_folder=folder))
    with open_index(settings_for(tmp_path, engine="dense", encoder=cls)) as other:
        assert other.folder != folder


def test_finished_index_serves_without_its_corpus_and_an_unfinished_one_never(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, engine="hybrid")
    with open_index(settings) as index:
        expected = index.search("red tower 3", 5)
    moved = Path(shutil.move(index.folder, tmp_path / "moved"))
    alone = IndexSettings.model_validate({"engine": "hybrid", "index_folder": moved, "encoder": HASHING})
    with open_index(alone) as again:
        assert again.search("red tower 3", 5) == expected
    (moved / "index.json").unlink()
    with pytest.raises(DataError, match="no finished index"):
        open_index(alone)


class CrashingEncoder(Encoder):
    """Hashes words, and crashes after so many passages; shared by all encoders that a test opens."""

    def __init__(self, passages: int) -> None:
        self._inner = HashingEncoder(IndexSettings.model_validate({"encoder": HASHING}).encoder)
        super().__init__(self._inner.dimension, self._inner.identity)
        self.left = passages
        self.seen = 0

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Any:
        if not is_query:
            if len(texts) > self.left:
                raise ModelError("the encoder is gone")
            self.left -= len(texts)
            self.seen += len(texts)
        return self._inner._encode(texts, is_query=is_query)


def test_interrupted_embedding_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = CrashingEncoder(passages=25)
    monkeypatch.setattr(embedding, "SHARD_DOCUMENTS", 8)
    monkeypatch.setattr(opening, "open_encoder", lambda settings: encoder)
    settings = settings_for(tmp_path, engine="dense")
    with pytest.raises(ModelError, match="is gone"):
        open_index(settings)
    assert encoder.seen == 24
    encoder.left = 1000
    with open_index(settings) as index:
        assert ids(index, TEXTS[13], 1) == ["d13"]
    assert encoder.seen == len(TEXTS)
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")] == [
        index.folder.name
    ]


def test_progress_is_reported_in_documents(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    with open_index(settings_for(tmp_path, engine="dense"), lambda *what: told.append(what)):
        assert told == [("vectors", 60, 60)]


def test_equal_scores_are_in_corpus_order_across_segments(tmp_path: Path) -> None:
    documents = [Document(str(n), "", "red tower" if n % 3 else "blue tower") for n in range(200)]
    rankings = []
    for size in (None, 30, 7):
        folder = tmp_path / str(size)
        folder.mkdir()
        assert bm25.build(folder, documents, segment_documents=size) == 200
        ranker = bm25.WordRanker(folder)
        rankings.append([[row for row, _ in ranker.rank("blue", top_n)] for top_n in (1, 5, 40, 200)])
    assert rankings == [[list(range(0, 200, 3))[:top_n] for top_n in (1, 5, 40, 200)]] * 3


@pytest.mark.covers("evaluation-26")
def test_reciprocal_ranks_add_up() -> None:
    fused = reciprocal_ranks([[7, 3], [3, 7]], 5)
    assert [(row, round(score, 5)) for row, score in fused] == [(3, 0.03252), (7, 0.03252)]
    assert reciprocal_ranks([[7, 3], [3]], 1)[0][0] == 3


@pytest.mark.covers("evaluation-26")
def test_ties_of_three_rankings_have_one_order() -> None:
    rankings = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    orders = {tuple(row for row, _ in reciprocal_ranks(rankings[n:] + rankings[:n], 3)) for n in range(3)}
    assert orders == {(1, 2, 3)}


def test_long_documents_are_split_without_loss(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(25))
    parts = split(Document("7", "Vorna", text), Chunking(10, 2))
    assert [part.id for part in parts] == ["7#0", "7#1", "7#2"]
    assert [part.title for part in parts] == ["Vorna"] * 3
    assert [part.text.split()[0] for part in parts] == ["w0", "w8", "w16"]
    assert parts[-1].text.endswith("w24") and len(parts[0].text.split()) == 10
    short = Document("8", "", "one  two\nthree")
    assert split(short, Chunking(10)) == [short]
    with open_index(settings_for(tmp_path, [text], chunk_words=10)) as index:
        assert ids(index, "w21", 3) == ["d0#2"]


def test_ids_with_equal_digests_are_not_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.retriever.corpus._id_digest", lambda id_: 7)
    settings = settings_for(tmp_path, ["a", "b"])
    assert [document.id for document in read_corpus(settings.corpus)] == ["d0", "d1"]


def test_stage_describes_its_index_and_reruns_only_for_another(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "root", "r", {}, {})

    def made(settings: IndexSettings) -> StageRecord:
        return execute(Instance(address=Address(1, "index"), stage=INDEX_STAGE, settings=settings.with_digests()), run)

    settings = settings_for(tmp_path, engine="dense")
    record = made(settings)
    (row,) = ArtifactReader(run.storage, record.outputs["indexes"]).rows()
    with open_index(settings) as index:
        assert row["fingerprint"] == index.info.fingerprint
    assert (row["engine"], row["num_documents"], row["encoder"], row["dimension"]) == ("dense", 60, "hashing", 64)
    assert orjson.loads(row["identity"])["encoder"]["query_prefix"] == ""
    assert made(settings.model_copy(update={"cache_folder": tmp_path / "other"})).reused
    assert not made(settings_for(tmp_path, TEXTS[:-1], engine="dense")).reused


def prepared_bm25(folder: Path, texts: Sequence[str]) -> Path:
    """Return a folder as FlashRAG's index builder writes it: bm25s' files, the tokenizer's words and stop words."""
    import bm25s
    import Stemmer

    tokenizer = bm25s.tokenization.Tokenizer(stopwords="en", stemmer=Stemmer.Stemmer("english"))
    engine = bm25s.BM25()
    engine.index(tokenizer.tokenize(list(texts), return_as="tuple", show_progress=False), show_progress=False)
    engine.save(folder, show_progress=False)
    tokenizer.save_vocab(folder)
    tokenizer.save_stopwords(folder)
    params = orjson.loads((folder / "params.index.json").read_bytes())
    (folder / "params.index.json").write_bytes(orjson.dumps({**params, "backend": "numba"}))
    return folder


def test_flashrag_bm25_folder_is_used_directly_and_stems_queries(tmp_path: Path) -> None:
    texts = ("The runners were running quickly", "Cats sleep all day", "Paris is the capital of France")
    settings = settings_for(tmp_path, texts, prepared=prepared_bm25(tmp_path / "bm25", texts))
    with open_index(settings) as index:
        for number, query in enumerate(("running", "sleeping cats", "capital")):
            hit = index.search(query, 5)[0]
            assert (hit.id, hit.text) == (f"d{number}", texts[number]) and hit.score > 0
        assert index.search("zebra", 5) == index.search("the", 5) == []
        assert index.search_batch(["cats", "paris"], 1) == [index.search("cats", 1), index.search("paris", 1)]
    with pytest.raises(DataError, match="3 rows for 2 documents"):
        open_index(settings_for(tmp_path / "other", texts[:2], prepared=tmp_path / "bm25"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is not a bm25s index"):
        open_index(settings_for(tmp_path, texts, prepared=tmp_path / "empty"))
    with pytest.raises(DataError, match="nowhere does not exist"):
        open_index(settings_for(tmp_path, texts, prepared=tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="a prepared index needs engine bm25 or dense"):
        open_index(settings_for(tmp_path, texts, prepared=tmp_path / "bm25", engine="hybrid"))


def test_flashrag_faiss_file_is_used_directly(tmp_path: Path) -> None:
    own = settings_for(tmp_path, engine="dense")
    with open_index(own) as index:
        expected = index.search_batch(TEXTS, 5)
        prepared = Path(shutil.copy(index.folder / "vectors.faiss", tmp_path / "e5_Flat.index"))
        prints = {index.info.fingerprint}
    with open_index(own.model_copy(update={"prepared": prepared})) as index:
        assert index.search_batch(TEXTS, 5) == expected
        assert not (index.folder / "vectors.faiss").exists()
        prints.add(index.info.fingerprint)
    assert len(prints) == 2
    with pytest.raises(DataError, match="60 vectors for 59 documents"):
        open_index(settings_for(tmp_path / "other", TEXTS[:-1], engine="dense", prepared=prepared))
