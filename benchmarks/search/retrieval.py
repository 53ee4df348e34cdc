"""Measure search over the sample world at any size: build, index size, cold load, latency and recall.

    python -m benchmarks.search.retrieval sparse --documents 100000
    python -m benchmarks.search.retrieval dense --documents 10000 --folder /tmp/retrieval # keeps world and vectors

`dense` embeds the world with the embedded encoder and compares index types with exact search. Both sparse engines get
the same words (`retriever/tokens.py`) and questions, each in a process of its own with one thread. `bm25s` is the
reference: memory-mapped arrays, its own scoring, top results selected with numpy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from treadle.retriever import bm25
from treadle.retriever.tokens import Tokenizer

TOP_N = 4
MEMORY_BYTES = 6 << 30


def texts(corpus: Path) -> Iterable[str]:
    """Yield the contents of the documents, title line first."""
    with corpus.open("rb") as stream:
        for line in stream:
            row = orjson.loads(line)
            yield f"{row['title']}\n{row['text']}"


def build_tantivy(corpus: Path, folder: Path) -> None:
    """Build the index as the product does."""
    from treadle.retriever.corpus import read_corpus

    bm25.build(folder, read_corpus([corpus]))


def build_bm25s(corpus: Path, folder: Path) -> None:
    """Build the index from token ids, the input of bm25s that needs the least memory."""
    import bm25s

    tokenizer = Tokenizer()
    vocabulary: dict[str, int] = {}
    ids: list[array[int]] = []
    for text in texts(corpus):
        ids.append(array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in tokenizer.words(text)]))
    engine = bm25s.BM25(k1=1.2, b=0.75, method="lucene", auto_compile=False)
    engine.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    engine.save(folder, show_progress=False)


def open_tantivy(folder: Path) -> Callable[[str], list[int]]:
    """Return a function from a query to row numbers."""
    ranker = bm25.WordRanker(folder)
    return lambda query: [row for row, _ in ranker.rank(query, TOP_N)]


def open_bm25s(folder: Path) -> Callable[[str], list[int]]:
    """Return the same function over bm25s."""
    import bm25s

    engine = bm25s.BM25.load(folder, mmap=True, show_progress=False, auto_compile=False)
    tokenizer, vocabulary = Tokenizer(), engine.vocab_dict

    def ask(query: str) -> list[int]:
        ids = [vocabulary[word] for word in tokenizer.words(query) if word in vocabulary]
        if not ids:
            return []
        scores = engine.get_scores_from_ids(ids)
        found = np.flatnonzero(scores)
        if len(found) > TOP_N:
            least = np.partition(scores[found], len(found) - TOP_N)[len(found) - TOP_N]
            found = found[scores[found] >= least]
        return [int(row) for row in found[np.argsort(-scores[found], kind="stable")][:TOP_N]]

    return ask


ENGINES = {"tantivy": (build_tantivy, open_tantivy), "bm25s": (build_bm25s, open_bm25s)}


def build(engine: str, corpus: Path, folder: Path) -> dict[str, Any]:
    """Build an index in this process and return its figures."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started, cpu = time.perf_counter(), time.process_time()
    ENGINES[engine][0](corpus, folder)
    return {
        "build_s": time.perf_counter() - started,
        "build_cpu_s": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "index_mb": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
    }


def ask(engine: str, corpus: Path, folder: Path) -> dict[str, Any]:
    """Query an index in this process; return wall and CPU time per query, and recall of the named documents."""
    questions = [orjson.loads(line)["question"] for line in (corpus.parent / "questions.jsonl").open("rb")]
    for path in folder.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.perf_counter()
    search = ENGINES[engine][1](folder)
    search(questions[0])
    load_s = time.perf_counter() - started
    found = [search(question) for question in questions]
    wall, cpu = [], []
    for question in questions:
        at, cpu_at = time.perf_counter(), time.process_time()
        search(question)
        wall.append(time.perf_counter() - at)
        cpu.append(time.process_time() - cpu_at)
    figures = {
        "cold_load_s": load_s,
        "p50_ms": 1e3 * float(np.percentile(wall, 50)),
        "p99_ms": 1e3 * float(np.percentile(wall, 99)),
        "cpu_p50_ms": 1e3 * float(np.percentile(cpu, 50)),
        "cpu_p99_ms": 1e3 * float(np.percentile(cpu, 99)),
        "queries_per_cpu_s": len(cpu) / sum(cpu),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    (folder.parent / f"{engine}.found.json").write_text(json.dumps(found))
    return figures | {"recall_named": named_recall(corpus, questions, found)}


def named_recall(corpus: Path, questions: list[str], found: list[list[int]]) -> float:
    """Return the share of documents named in a question by title that were found."""
    rows = {orjson.loads(line)["title"]: row for row, line in enumerate(corpus.open("rb"))}
    wanted = got = 0
    for question, hits in zip(questions, found, strict=True):
        words = question.replace("?", " ").replace("'", " ").replace(",", " ").split()
        named = {rows[word] for word in words if word in rows}
        wanted += len(named)
        got += len(named & set(hits))
    return got / wanted


def in_child(task: str, engine: str, corpus: Path, folder: Path) -> dict[str, Any]:
    """Run one task in a new process with limited memory."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.search.retrieval",
        task,
        "--engine",
        engine,
        "--corpus",
        str(corpus),
        "--folder",
        str(folder),
    ]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env={**os.environ, **threads})
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def sparse(num_documents: int, folder: Path, engines: list[str]) -> dict[str, Any]:
    """Measure all engines at one size."""
    from treadle.demo.world_files import write_world

    world = folder / f"world-{num_documents}"
    corpus = world / "corpus.jsonl"
    if not corpus.exists():
        write_world(world, documents=num_documents, questions=2000, heldout_questions=100, tiers=(0, 1))
    result: dict[str, Any] = {}
    for engine in engines:
        place = world / engine
        result[engine] = in_child("build", engine, corpus, place) | in_child("ask", engine, corpus, place)
        print(engine, json.dumps(result[engine]), file=sys.stderr, flush=True)
    if len(engines) > 1:
        lists = [json.loads((world / f"{engine}.found.json").read_text()) for engine in engines]
        pairs = list(zip(*lists, strict=True))
        result["same_first"] = sum(one[:1] == other[:1] for one, other in pairs) / len(pairs)
        result["same_ranking"] = sum(one == other for one, other in pairs) / len(pairs)
    return result


def dense(num_documents: int, folder: Path) -> dict[str, Any]:
    """Compare index types over the vectors of a world with exact search, in this process with one thread."""
    import faiss

    from treadle.demo.world_files import write_world
    from treadle.retriever.config import DenseSettings, EncoderSettings
    from treadle.retriever.dense.index import VectorRanker, write_vectors
    from treadle.retriever.dense.open_encoder import open_encoder

    world = folder / f"world-{num_documents}"
    if not (world / "corpus.jsonl").exists():
        write_world(world, documents=num_documents, questions=1000, heldout_questions=100, tiers=(0, 1))
    encoder = open_encoder(EncoderSettings())
    result: dict[str, Any] = {}
    if not (world / "vectors.npy").exists():
        cpu = time.process_time()
        np.save(world / "vectors.npy", encoder.encode_passages(list(texts(world / "corpus.jsonl"))))
        result["passages_per_cpu_s"] = num_documents / (time.process_time() - cpu)
    questions = [orjson.loads(line)["question"] for line in (world / "questions.jsonl").open("rb")][:512]
    cpu = time.process_time()
    queries = encoder.encode_queries(questions)
    result["queries_encoded_per_cpu_s"] = len(questions) / (time.process_time() - cpu)
    faiss.omp_set_num_threads(1)
    exact: list[set[int]] = []
    for settings in (
        DenseSettings(),
        DenseSettings(storage="fp16"),
        DenseSettings(storage="sq8"),
        DenseSettings(type="ivf"),
        DenseSettings(type="hnsw"),
        DenseSettings(type="hnsw", storage="sq8"),
    ):
        path, started = world / "dense.faiss", time.process_time()
        write_vectors(path, [world / "vectors.npy"], encoder.dimension, settings)
        build_s, started = time.process_time() - started, time.perf_counter()
        ranker = VectorRanker(path, settings)
        load_s = time.perf_counter() - started
        started = time.process_time()
        alone = [ranker.rank(query[None], 5)[0] for query in queries]
        single_s, started = time.process_time() - started, time.process_time()
        batched = [hit for at in range(0, len(queries), 32) for hit in ranker.rank(queries[at : at + 32], 5)]
        batched_s = time.process_time() - started
        found = [{row for row, _ in ranking} for ranking in alone]
        exact = exact or found
        result[f"{settings.type} {settings.storage}"] = {
            "build_cpu_s": build_s,
            "bytes_per_document": path.stat().st_size / num_documents,
            "load_s": load_s,
            "cpu_ms_alone": 1e3 * single_s / len(queries),
            "cpu_ms_in_batches_of_32": 1e3 * batched_s / len(queries),
            "same_in_batches": alone == batched,
            "recall_at_5": sum(len(one & two) for one, two in zip(exact, found, strict=True)) / (5 * len(queries)),
        }
    return result


def main() -> None:
    """Parse the options, measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["sparse", "dense", "build", "ask"])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="folder to keep the files in; default: a temporary one")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--engine", choices=list(ENGINES))
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    if arguments.task in ("sparse", "dense"):
        with contextlib.nullcontext(arguments.folder) if arguments.folder else tempfile.TemporaryDirectory() as folder:
            engines = [arguments.engine] if arguments.engine else list(ENGINES)
            world = (arguments.documents, Path(folder))
            result = sparse(*world, engines) if arguments.task == "sparse" else dense(*world)
        print(json.dumps(result, indent=None if arguments.json else 2))
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    task = build if arguments.task == "build" else ask
    print(json.dumps(task(arguments.engine, arguments.corpus, arguments.folder)))


if __name__ == "__main__":
    main()
