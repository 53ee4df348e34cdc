"""Compute disk and memory of vector indexes by type for any size, and check the computation at small sizes.

    python -m benchmarks.search.index_memory # 100,000 and 200,000 vectors of 768 numbers
    python -m benchmarks.search.index_memory --documents 5000 10000 --dimension 64
    python -m benchmarks.search.index_memory --computed 21015324 # only the table of docs/guides/retrieval.md

The vectors are random, of length 1. Every index is built as in the product. It is then opened and queried 32 times in a
process of its own, which reports its memory: `held` is anonymous memory, `mapped` are pages of the file, which the
system can reclaim. The BM25 index gets a tenth as many passages of 100 words drawn by Zipf's law. Uses at most 4 GiB of
memory, and 1.5 GB of disk in --folder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parts.figures import Figure, add_json_option, publish
from treadle.retriever import bm25
from treadle.retriever.config import DenseSettings
from treadle.retriever.corpus import Document
from treadle.retriever.dense.index import VectorRanker, write_vectors

MEMORY_BYTES = 4 << 30
SHARD = 4_096
BOUNDED_FROM_BYTES = 50_000_000
PASSAGE_WORDS = 100
ZIPF_EXPONENT = 1.2
_BYTES = {"fp32": 4, "fp16": 2, "sq8": 1}
# The number of lists and the width while building affect the cost of building, but not the bytes per document.
KINDS: dict[str, dict[str, Any]] = {
    "flat fp32": {},
    "flat fp16": {"storage": "fp16"},
    "flat sq8": {"storage": "sq8"},
    "ivf fp32": {"type": "ivf", "ivf_lists": 256},
    "ivf sq8": {"type": "ivf", "ivf_lists": 256, "storage": "sq8"},
    "hnsw fp32": {"type": "hnsw", "hnsw_build_width": 16},
    "hnsw sq8": {"type": "hnsw", "hnsw_build_width": 16, "storage": "sq8"},
}


def computed_bytes(settings: DenseSettings, documents: int, dimension: int) -> int:
    """Return the length of faiss' file, without some hundred bytes of headers."""
    numbers = documents * dimension * _BYTES[settings.storage]
    ranges = 2 * 4 * dimension if settings.storage == "sq8" else 0
    if settings.type == "ivf":
        lists = min(settings.ivf_lists or 4 * math.isqrt(documents), documents // 39 or 1)
        # Per document its row number; per list its centre and its length.
        return numbers + ranges + 8 * documents + lists * (4 * dimension + 8)
    if settings.type == "hnsw":
        links = settings.hnsw_links
        # Twice the links at the bottom; each level above has 1/links of the documents, with `links` links each.
        numbers_per_document = 2 * links + links / (links - 1)
        return numbers + ranges + round(documents * (4 * numbers_per_document + 4 + 8))
    return numbers + ranges


def write_shards(folder: Path, documents: int, dimension: int) -> list[Path]:
    """Write random vectors of length 1, the same in every run."""
    folder.mkdir(parents=True)
    paths = []
    for number, start in enumerate(range(0, documents, SHARD)):
        rows = np.random.default_rng(number).standard_normal((min(SHARD, documents - start), dimension), np.float32)
        paths.append(folder / f"{number}.npy")
        np.save(paths[-1], rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return paths


def opened(path: Path, kind: str) -> dict[str, int]:
    """Return by how many bytes this process grew after opening and querying an index."""
    settings = DenseSettings(**KINDS[kind])
    # Load faiss' threads, buffers and code first, with a tiny index.
    small = path.with_name("small.faiss")
    np.save(path.with_name("small.npy"), np.eye(64, dtype=np.float32))
    write_vectors(small, [path.with_name("small.npy")], 64, DenseSettings())
    VectorRanker(small, DenseSettings()).rank(np.eye(64, dtype=np.float32)[:32], 5)
    before = memory()
    ranker = VectorRanker(path, settings)
    loaded = memory()
    queries = np.random.default_rng(7).standard_normal((32, ranker.dimension), np.float32)
    ranker.rank(queries / np.linalg.norm(queries, axis=1, keepdims=True), 5)
    asked = memory()
    return {
        "loaded": loaded["RssAnon"] - before["RssAnon"],
        "held": asked["RssAnon"] - before["RssAnon"],
        "mapped": asked["RssFile"] - before["RssFile"],
    }


def memory() -> dict[str, int]:
    """Return the memory of this process in bytes, by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith("Rss")}


def build_words(folder: Path, documents: int) -> dict[str, int]:
    """Build a BM25 index; return the bytes of its files and the number of (passage, word) pairs."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    num_pairs = 0

    def passages() -> Iterator[Document]:
        nonlocal num_pairs
        for number in range(documents):
            words = rng.zipf(ZIPF_EXPONENT, PASSAGE_WORDS)
            num_pairs += len(np.unique(words))
            yield Document(str(number), "", " ".join(f"w{word}" for word in words))

    bm25.build(folder, passages())
    return {
        "file": sum(path.stat().st_size for path in folder.iterdir()),
        "pairs": num_pairs,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def in_child(task: str, *arguments: str) -> dict[str, int]:
    """Run a task in a new process."""
    command = [sys.executable, "-m", "benchmarks.search.index_memory", "--child", task, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, int] = json.loads(done.stdout)
    return result


def child(task: str, kind: str, path: Path, shards: Path) -> dict[str, int]:
    """Build or open one index, with limited memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    if task == "words":
        return build_words(path, int(kind))
    if task == "open":
        return opened(path, kind)
    paths = sorted(shards.glob("*.npy"), key=lambda one: int(one.stem))
    write_vectors(path, paths, np.load(paths[0], mmap_mode="r").shape[1], DenseSettings(**KINDS[kind]))
    return {"file": path.stat().st_size, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}


def measure(documents: int, dimension: int, folder: Path) -> list[Figure]:
    """Measure all kinds at one size."""
    shards = folder / "shards"
    write_shards(shards, documents, dimension)
    figures = []
    for kind, settings in KINDS.items():
        path = folder / "index.faiss"
        built = in_child("build", kind, str(path), str(shards))
        found = in_child("open", kind, str(path), str(shards))
        expected = computed_bytes(DenseSettings(**settings), documents, dimension)
        name = f"{kind}, {documents:,}:"
        # For smaller files, headers and faiss' own code are not negligible.
        is_bounded = expected >= BOUNDED_FROM_BYTES
        most = 1.1 if is_bounded else None
        figures += [
            Figure(name=f"{name} file", value=built["file"] / 1e6, unit="MB"),
            Figure(
                name=f"{name} file to computed",
                value=built["file"] / expected,
                at_least=0.999 if is_bounded else None,
                at_most=1.001 if is_bounded else None,
            ),
            Figure(name=f"{name} held to computed", value=found["held"] / expected, at_most=most),
            Figure(name=f"{name} mapped to computed", value=found["mapped"] / expected, at_most=most),
            Figure(name=f"{name} peak of building", value=built["peak"] / 1e6, unit="MB"),
        ]
        path.unlink()
    shutil.rmtree(shards)
    passages = documents // 10
    words = in_child("words", str(passages), str(folder / "words"), str(shards))
    shutil.rmtree(folder / "words")
    name = f"words, {passages:,}:"
    return [
        *figures,
        Figure(name=f"{name} file per passage", value=words["file"] / passages, unit="bytes"),
        Figure(name=f"{name} different words of a passage", value=words["pairs"] / passages, unit="words"),
        Figure(name=f"{name} peak of building", value=words["peak"] / 1e6, unit="MB"),
    ]


def computed(documents: int, dimension: int) -> str:
    """Return the computed size of every kind, with the default number of lists."""
    lines = [f"{documents:,} vectors of {dimension} numbers"]
    for kind, settings in KINDS.items():
        chosen = DenseSettings(**{name: value for name, value in settings.items() if name in ("type", "storage")})
        size = computed_bytes(chosen, documents, dimension)
        lines.append(f"{kind:10} {size:>16,} bytes  {size / 1e9:6.2f} GB  {size / 2**30:6.2f} GiB")
    return "\n".join(lines)


def main() -> None:
    """Parse the options, measure or compute, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 200_000])
    parser.add_argument("--dimension", type=int, default=768)
    parser.add_argument("--computed", type=int, metavar="DOCUMENTS", help="only compute, for so many")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    add_json_option(parser)
    options = parser.parse_args()
    if options.child:
        task, kind, path, shards = options.child
        print(json.dumps(child(task, kind, Path(path), Path(shards))))
        return
    if options.computed:
        print(computed(options.computed, options.dimension))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = [figure for size in options.documents for figure in measure(size, options.dimension, Path(folder))]
    publish(figures, options.json)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
