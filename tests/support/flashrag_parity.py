"""Where Treadle and FlashRAG must find the same in the same prepared indexes, and known bugs of FlashRAG.

Each check takes a folder as tests/support/flashrag/README.md describes it, FlashRAG's answers, and a folder to work in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.retriever.config import EncoderSettings, IndexSettings
from treadle.retriever.index import Index
from treadle.retriever.open_index import open_index

GOLDEN = Path(__file__).parent / "flashrag"
Found = list[tuple[str, float]]
"""Ids and scores of one query, best first."""
Answers = dict[str, list[dict[str, Any]]]
_FAMILIES = {"e5": "e5-base-v2", "bge": "bge-base-en-v1.5"}
"""Method of FlashRAG -> name by which Treadle knows prefixes and pooling. Both are taken from the name alone."""
_SCORES_WITHIN = 1e-4
_EQUAL_WITHIN = 1e-5
_CHARS_OF_A_SINGLE_QUERY = 64
"""FlashRAG's `search` cuts the query into batches of 64 characters and ranks by the first."""
_TOP_N = 10


def open_prepared(folder: Path, method: str, work: Path) -> Index:
    """FlashRAG's index of a method, as Treadle opens it."""
    engine, encoder, prepared = "bm25", EncoderSettings(), folder / "bm25"
    if method in _FAMILIES:
        model = work / _FAMILIES[method]
        if not model.exists():
            model.symlink_to((folder / "model").absolute())
        engine, prepared = "dense", folder / f"{method}_Flat.index"
        encoder = EncoderSettings(type="model", model=str(model), device="cpu")
    return open_index(
        IndexSettings(
            engine=engine,
            corpus=(folder / "corpus.jsonl",),
            prepared=prepared,
            encoder=encoder,
            cache_folder=work / "indexes",
        )
    )


def check_dense(folder: Path, answers: Answers, work: Path) -> None:
    for method in _FAMILIES:
        with open_prepared(folder, method, work) as index:
            check_same(ours(index, queries_of(folder, method)), theirs(answers[method]))


def check_bm25(folder: Path, answers: Answers, work: Path) -> None:
    """As FlashRAG's engine answers with the tokenizer that it built the index with."""
    with open_prepared(folder, "bm25", work) as index:
        queries = queries_of(folder, "bm25")
        found = ours(index, queries)
        check_same(found, theirs(answers["bm25"]))
        # FlashRAG fills up with documents that share no word with the query; Treadle does not.
        everything = ours(index, queries, 10_000)
        assert [len(hits) + one["num_filled_up"] for hits, one in zip(everything, answers["bm25"], strict=True)] == [
            index.num_documents
        ] * len(queries)


def check_bm25_without_stemmer(folder: Path, answers: Answers, work: Path) -> None:
    """FlashRAG itself leaves the stemmer out of queries: words that are not their own stem are lost there."""
    import Stemmer

    stem = Stemmer.Stemmer("english").stemWord
    queries = queries_of(folder, "bm25 as it is")
    lost = theirs(answers["bm25 as it is"])
    kept = [" ".join(word for word in re.findall(r"\w\w+", query.lower()) if stem(word) == word) for query in queries]
    with open_prepared(folder, "bm25", work) as index:
        check_same(ours(index, kept), lost)
        whole = ours(index, queries, 10_000)
    assert sum(len(one) > len(other) for one, other in zip(whole, lost, strict=True)) >= 10


def check_single_queries(folder: Path, answers: Answers, work: Path) -> None:
    """FlashRAG's call for a single query ranks by its first 64 characters; Treadle's ranks as its batches do."""
    name = "e5 one by one"
    queries, cut = queries_of(folder, name), theirs(answers[name])
    assert any(len(query) > _CHARS_OF_A_SINGLE_QUERY for query in queries)
    with open_prepared(folder, "e5", work) as index:
        check_same(ours(index, [query[:_CHARS_OF_A_SINGLE_QUERY] for query in queries]), cut)
        for query, found in zip(queries, cut, strict=True):
            hits = ours(index, [query])
            check_same(hits, ours(index, [*queries, query])[-1:])
            is_cut = len(query) > _CHARS_OF_A_SINGLE_QUERY
            assert is_cut == any(abs(a - b) > _SCORES_WITHIN for (_, a), (_, b) in zip(hits[0], found, strict=False))


def check_beyond_the_end(folder: Path, answers: Answers, work: Path) -> None:
    """FlashRAG takes faiss' -1 for the last row and returns it again; Treadle has every document once."""
    name = "e5 beyond the end"
    queries = queries_of(folder, name)
    ids = [json.loads(line)["id"] for line in (folder / "corpus.jsonl").open("rb")]
    with open_prepared(folder, "e5", work) as index:
        for hits, found in zip(ours(index, queries, 10_000), theirs(answers[name]), strict=True):
            assert [id_ for id_, _ in found[len(ids) :]] == [ids[-1]] * 3
            check_same([hits], [found[: len(ids)]])
            assert sorted(id_ for id_, _ in hits) == sorted(ids)


CHECKS = (check_dense, check_bm25, check_bm25_without_stemmer, check_single_queries, check_beyond_the_end)


def queries_of(folder: Path, name: str) -> list[str]:
    """Return the queries of a question of `job.json`."""
    queries: list[str] = json.loads((folder / "job.json").read_text())[name]["queries"]
    return queries


def ours(index: Index, queries: Sequence[str], top_n: int = _TOP_N) -> list[Found]:
    """Return Treadle's results."""
    return [[(hit.id, hit.score) for hit in hits] for hits in index.search_batch(queries, top_n)]


def theirs(answers: list[dict[str, Any]]) -> list[Found]:
    """Return FlashRAG's results, except documents that share no word with the query."""
    return [list(zip(answer["ids"], answer["scores"], strict=True)) for answer in answers]


def check_same(ours: list[Found], theirs: list[Found]) -> None:
    """Check for the same documents in the same order with the same scores; documents of equal scores may change places.

    Theirs may go deeper, so that a group of equal scores is known as a whole.
    """
    assert len(ours) == len(theirs)
    for hits, found in zip(ours, theirs, strict=True):
        assert len(dict(hits)) == len(hits) == min(len(found), max(len(hits), _TOP_N))
        scores = dict(found)
        for (id_, score), (_, expected) in zip(hits, found, strict=False):
            assert abs(score - expected) <= _SCORES_WITHIN
            assert abs(scores[id_] - expected) <= _EQUAL_WITHIN
