"""Measure vector search: exact search singly and in micro-batches, recall of other indexes, cold starts.

    python -m benchmarks.search.dense_search [--documents 100000] [--dimension 384] [--queries 1024]

The vectors are synthetic and the same in every run. Centres, one per 1,000 documents, are random directions. A document
is its centre plus noise of the same length, scaled to length 1, so documents of a centre have cosines of about 0.5. A
query is a document plus noise of the same length: cosine about 0.7 to that document, 0.35 to others of its centre, 0
elsewhere. For comparison: questions of the sample world, embedded by all-MiniLM-L6-v2, have 0.65 to the nearest and
0.48 to the hundredth of 10,000 documents. Noise in all directions makes neighbours harder to distinguish than there.

Every index is built as in the product, and queried in a process of its own with one thread. `plain faiss` queries the
same flat file through faiss only, with faiss' own settings; recall is relative to its results. Queries come in blocks
that are run through all batch sizes in turn, so that changes in machine speed affect all alike. A cold start is a new
process that opens the index and its documents from disk (index files not in the page cache; Python's own are) and
answers one query; the time counts from the start of the process, and the slowest of three is reported. The encoder is
`hashing`, so that only search is measured. Needs 0.8 GB of disk in --folder; most of the time is spent building the
graph.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.parts.figures import Figure, add_json_option, publish
from treadle.retriever.batching import MicroBatcher
from treadle.retriever.config import DenseSettings, EncoderSettings, IndexSettings
from treadle.retriever.dense.encoders import HashingEncoder
from treadle.retriever.dense.index import DenseIndex, VectorRanker, write_vectors
from treadle.retriever.documents import DocumentStore
from treadle.retriever.index import Index, IndexInfo
from treadle.retriever.open_index import open_index

TOP_N = 5
SHARD = 4_096
DOCUMENTS_PER_CENTRE = 1_000
BLOCK = 256
BATCHES = (8, 32, 64)
IN_FLIGHT = 64
COLD_STARTS = 3
PLAIN = "plain faiss"
WORDS = "bm25"
KINDS: dict[str, dict[str, Any]] = {
    "flat fp32": {},
    "flat fp16": {"storage": "fp16"},
    "flat sq8": {"storage": "sq8"},
    "hnsw fp32": {"type": "hnsw"},
}
Ids = list[list[int]]


def noisy(rng: np.random.Generator, vectors: Any) -> Any:
    """Add noise of the same length to unit vectors, and scale them to length 1 again."""
    noise = rng.standard_normal(vectors.shape, np.float32) / np.sqrt(vectors.shape[1])
    return unit(vectors + noise)


def unit(vectors: Any) -> Any:
    """Scale rows to length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def write_shards(folder: Path, documents: int, dimension: int, queries: int) -> None:
    """Write document vectors in shards, and the queries as `queries.npy`."""
    rng = np.random.default_rng(0)
    centres = unit(rng.standard_normal((max(1, documents // DOCUMENTS_PER_CENTRE), dimension), np.float32))
    asked = np.sort(rng.choice(documents, size=min(queries, documents), replace=False))
    near = []
    folder.mkdir()
    for number, start in enumerate(range(0, documents, SHARD)):
        size = min(SHARD, documents - start)
        rows = noisy(rng, centres[rng.integers(len(centres), size=size)])
        np.save(folder / f"{number:06}.npy", rows)
        near.append(noisy(rng, rows[asked[(asked >= start) & (asked < start + size)] - start]))
    np.save(folder / "queries.npy", rng.permutation(np.concatenate(near)))


def write_words(folder: Path, documents: int) -> Path:
    """Write the sample world and a BM25 index over it; return the folder of the index."""
    from treadle.demo.world_files import write_world

    world = write_world(folder / "world", documents=documents, questions=documents // 10, heldout_questions=0)
    settings = IndexSettings(corpus=(world.corpus,), cache_folder=folder / "cache")
    with open_index(settings) as index:
        return index.folder


def questions(folder: Path, count: int) -> list[str]:
    """Return distinct questions of the sample world."""
    rows = [orjson.loads(line)["question"] for line in (folder / "world" / "questions.jsonl").read_bytes().splitlines()]
    return [f"{rows[number % len(rows)]} ({number})" for number in range(count)]


def opened(folder: Path, kind: str, words: Path) -> Index:
    """Open an index with its documents, ready for queries."""
    if kind == WORDS:
        return open_index(IndexSettings(index_folder=words))
    path = index_path(folder, kind)
    documents = DocumentStore(words)
    info = IndexInfo(engine="dense", fingerprint=kind, num_documents=len(documents), num_bytes=path.stat().st_size)
    settings = DenseSettings(**KINDS[kind])
    dimension = int(np.load(folder / "shards" / "queries.npy", mmap_mode="r").shape[1])
    return DenseIndex(words, info, documents, settings, HashingEncoder(EncoderSettings(dimension=dimension)), path)


def index_path(folder: Path, kind: str) -> Path:
    """Return the path of the index of a kind."""
    return folder / f"{kind.replace(' ', '-')}.faiss"


def build(folder: Path, kind: str) -> dict[str, Any]:
    """Build one index and return its CPU time (all threads) and size."""
    shards = sorted((folder / "shards").glob("[0-9]*.npy"))
    dimension = int(np.load(shards[0], mmap_mode="r").shape[1])
    started = time.process_time()
    write_vectors(index_path(folder, kind), shards, dimension, DenseSettings(**KINDS[kind]))
    return {"cpu_s": time.process_time() - started, "bytes": index_path(folder, kind).stat().st_size}


def search(folder: Path, kind: str) -> dict[str, Any]:
    """Run all queries singly and in batches; return CPU milliseconds per query and the rows found."""
    queries = np.load(folder / "shards" / "queries.npy")
    ask = plain_faiss(folder) if kind == PLAIN else ranked(folder, kind)
    ask(queries[:1])
    sizes = (1, *BATCHES)
    cpu_s: dict[int, float] = dict.fromkeys(sizes, 0.0)
    found: dict[int, Ids] = {size: [] for size in sizes}
    for block in range(0, len(queries), BLOCK):
        here = queries[block : block + BLOCK]
        for size in sizes:
            started = time.process_time()
            for at in range(0, len(here), size):
                found[size] += ask(here[at : at + size])
            cpu_s[size] += time.process_time() - started
    return {
        "cpu_ms": {size: 1e3 * seconds / len(queries) for size, seconds in cpu_s.items()},
        "same": {size: share(row == alone for row, alone in zip(found[size], found[1], strict=True)) for size in sizes},
        "found": found[1],
    }


def ranked(folder: Path, kind: str) -> Callable[[Any], Ids]:
    """Return the product's search function."""
    ranker = VectorRanker(index_path(folder, kind), DenseSettings(**KINDS[kind]))
    return lambda vectors: [[row for row, _ in ranking] for ranking in ranker.rank(vectors, TOP_N)]


def plain_faiss(folder: Path) -> Callable[[Any], Ids]:
    """Return a search function that uses only faiss, over the same file."""
    import faiss

    index = faiss.read_index(str(index_path(folder, "flat fp32")), faiss.IO_FLAG_MMAP_IFC)
    return lambda vectors: index.search(vectors, TOP_N)[1].tolist()


def share(holds: Iterator[bool]) -> float:
    """Return the share of cases that are true."""
    cases = list(holds)
    return sum(cases) / len(cases)


def recall(found: Ids, exact: Ids) -> float:
    """Return the share of the exact best results that were found."""
    both = sum(len(set(one) & set(other)) for one, other in zip(found, exact, strict=True))
    return both / sum(len(other) for other in exact)


def cold(folder: Path, kind: str, words: Path) -> dict[str, Any]:
    """Open the index and run one query; return the time and the bytes read from disk."""
    before, started = read_bytes(), time.perf_counter()
    found = opened(folder, kind, words).search(questions(folder, 1)[0], TOP_N)
    if len(found) != TOP_N:
        raise SystemExit(f"{kind} found {len(found)} documents instead of {TOP_N}")
    return {"open_s": time.perf_counter() - started, "read_bytes": read_bytes() - before}


def read_bytes() -> int:
    """Return the bytes that this process has read from disk; pages in the page cache do not count."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def drop_from_page_cache(paths: Sequence[Path]) -> None:
    """Drop files from the page cache, so that the next reader reads from disk."""
    for path in paths:
        with path.open("rb") as stream:
            # Only clean pages can be dropped.
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def serve(folder: Path, words: Path) -> dict[str, Any]:
    """Return queries per second through the service's batcher with one worker, by number in flight."""
    with opened(folder, "flat fp32", words) as index:
        return {str(count): asyncio.run(rate(index, questions(folder, 512), count)) for count in (1, IN_FLIGHT)}


async def rate(index: Index, queries: Sequence[str], num_in_flight: int) -> float:
    """Return queries per second with this many in flight."""
    left = iter(queries)

    async def ask(batcher: MicroBatcher) -> None:
        for query in left:
            await batcher.rank([query], TOP_N)

    async with MicroBatcher(index, num_workers=1, max_batch=BATCHES[-1], max_waiting=IN_FLIGHT) as batcher:
        started = time.perf_counter()
        await asyncio.gather(*(ask(batcher) for _ in range(num_in_flight)))
        return len(queries) / (time.perf_counter() - started)


def in_child(folder: Path, words: Path, task: str, kind: str, *, is_one_thread: bool = True) -> dict[str, Any]:
    """Run a task in a new process, and add `whole_s`: seconds from its start to its result."""
    command = [sys.executable, "-m", "benchmarks.search.dense_search", "--child", task, kind, str(folder), str(words)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} if is_one_thread else {}
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads}) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        whole_s = time.perf_counter() - started
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    result: dict[str, Any] = json.loads(line)
    return {**result, "whole_s": whole_s}


def child(task: str, kind: str, folder: Path, words: Path) -> dict[str, Any]:
    """Run one task in this process."""
    if task == "build":
        return build(folder, kind)
    if task == "search":
        return search(folder, kind)
    return cold(folder, kind, words) if task == "cold" else serve(folder, words)


def exact_figures(exact: dict[str, Any], plain: dict[str, Any]) -> list[Figure]:
    """Return the figures of exact search: singly, in batches, and relative to plain faiss."""
    alone_ms = exact["cpu_ms"]["1"]
    figures = [
        Figure(name="exact, one by one: CPU per query", value=alone_ms, unit="ms"),
        Figure(
            name="exact, one by one: CPU relative to plain faiss", value=alone_ms / plain["cpu_ms"]["1"], at_most=1.5
        ),
        Figure(
            name="exact: recall@5 relative to plain faiss", value=recall(exact["found"], plain["found"]), at_least=0.999
        ),
    ]
    for size in BATCHES:
        cpu_ms, name = exact["cpu_ms"][str(size)], f"exact, batches of {size}:"
        figures += [
            Figure(name=f"{name} CPU per query", value=cpu_ms, unit="ms"),
            Figure(
                name=f"{name} one by one relative to it",
                value=alone_ms / cpu_ms,
                at_least=5.0 if size == BATCHES[-1] else None,
            ),
            Figure(name=f"{name} same best 5", value=exact["same"][str(size)], at_least=1.0),
        ]
    ratio = plain["cpu_ms"]["1"] / plain["cpu_ms"]["32"]
    return [*figures, Figure(name="plain faiss: one by one relative to batches of 32", value=ratio)]


def kind_figures(kind: str, built: dict[str, Any], found: dict[str, Any], exact: Ids, alone_ms: float) -> list[Figure]:
    """Return the figures of a smaller or approximate index, relative to the exact one queried singly."""
    cpu_ms = found["cpu_ms"]["1"]
    least = 0.99 if kind.startswith("hnsw") else None
    return [
        Figure(name=f"{kind}: recall@5", value=recall(found["found"], exact), at_least=least),
        Figure(name=f"{kind}: CPU per query", value=cpu_ms, unit="ms"),
        Figure(name=f"{kind}: exact one by one relative to it", value=alone_ms / cpu_ms),
        Figure(name=f"{kind}: CPU per query, batches of 32", value=found["cpu_ms"]["32"], unit="ms"),
        Figure(name=f"{kind}: file", value=built["bytes"] / 1e6, unit="MB"),
        Figure(name=f"{kind}: build, CPU", value=built["cpu_s"], unit="s"),
    ]


def cold_figures(folder: Path, words: Path, kind: str) -> list[Figure]:
    """Measure cold starts of one index."""
    files = [one for one in words.rglob("*") if one.is_file()]
    starts = []
    for _ in range(COLD_STARTS):
        drop_from_page_cache(files if kind == WORDS else [*files, index_path(folder, kind)])
        starts.append(in_child(folder, words, "cold", kind))
    worst = max(starts, key=lambda start: float(start["whole_s"]))
    return [
        Figure(name=f"cold start, {kind}", value=worst["whole_s"], unit="s", at_most=2.0),
        Figure(name=f"cold start, {kind}: opening and answer", value=worst["open_s"], unit="s"),
        Figure(name=f"cold start, {kind}: read from disk", value=worst["read_bytes"] / 1e6, unit="MB"),
    ]


def measure(options: argparse.Namespace, folder: Path) -> list[Figure]:
    """Measure all figures; the indexes are deleted together with the folder."""
    write_shards(folder / "shards", options.documents, options.dimension, options.queries)
    words = write_words(folder, options.documents)
    built = {kind: in_child(folder, words, "build", kind, is_one_thread=False) for kind in KINDS}
    plain = in_child(folder, words, "search", PLAIN)
    found = {kind: in_child(folder, words, "search", kind) for kind in KINDS}
    flat = found["flat fp32"]
    figures = exact_figures(flat, plain)
    for kind in list(KINDS)[1:]:
        figures += kind_figures(kind, built[kind], found[kind], plain["found"], flat["cpu_ms"]["1"])
    rates = in_child(folder, words, "serve", "flat fp32")
    figures += [
        Figure(name="service's batcher, one in flight", value=rates["1"], unit="queries/s"),
        Figure(name=f"service's batcher, {IN_FLIGHT} in flight", value=rates[str(IN_FLIGHT)], unit="queries/s"),
        Figure(
            name=f"service's batcher, {IN_FLIGHT} in flight relative to one", value=rates[str(IN_FLIGHT)] / rates["1"]
        ),
    ]
    for kind in ("flat fp32", "hnsw fp32", WORDS):
        figures += cold_figures(folder, words, kind)
    return figures


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=1_024)
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.child:
        task, kind, folder, words = options.child
        print(json.dumps(child(task, kind, Path(folder), Path(words))), flush=True)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        publish(measure(options, Path(folder)), options.json)


if __name__ == "__main__":
    main()
