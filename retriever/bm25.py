"""A BM25 index in this process: built once from a corpus, kept in a cache folder, memory-mapped when used.

Scores come from `bm25s`. Around it: tokenisation that keeps numbers of one digit, ties broken by the order of the
corpus, and a folder that is there completely or not at all. Documented in docs/behaviour/retrieval.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import mmap
import os
import re
import shutil
import threading
import unicodedata
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from treadle.core.config import digest_json
from treadle.core.engines.cache import cache_root
from treadle.core.errors import ConfigError, DataError, StorageError
from treadle.core.inputs import file_sha256
from treadle.retriever.corpus import Document, read_corpus

MAX_QUERY_CHARS = 4_096
"""A longer query is cut: no honest one comes near, and tokenising megabytes would hold up the others."""
_LAYOUT = 1
_META = "index.json"
_TOKEN_PATTERN = r"\w+"
_TOKEN = re.compile(_TOKEN_PATTERN)
_K1: Final = 1.5
_B: Final = 0.75
# Function words that nearly every document has. Question words are left out of queries by the same list.
_STOPWORD_TEXT = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with what which who whom whose when where how does do did"
)
_STOPWORDS = frozenset(_STOPWORD_TEXT.split())


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found, with its BM25 score (above 0)."""

    id: str
    title: str
    text: str
    score: float

    @property
    def contents(self) -> str:
        """Title line and text, as in the corpus."""
        return Document(self.id, self.title, self.text).contents


def default_cache() -> Path:
    """`$TREADLE_CACHE/indexes`, else `~/.cache/treadle/indexes`."""
    return cache_root() / "indexes"


def fingerprint(digests: Sequence[str]) -> str:
    """Hex digest of all that decides an index: the corpus files, tokenisation, parameters, library versions."""
    return digest_json(
        {
            "layout": _LAYOUT,
            "corpus": list(digests),
            "tokens": [_TOKEN_PATTERN, "NFKC casefold", "snowball english", sorted(_STOPWORDS)],
            "bm25": ["lucene", _K1, _B],
            "versions": [_version("bm25s"), _version("PyStemmer")],
        }
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"search needs the package {package}; install treadle with its extra retriever") from None


class Tokenizer:
    """Words and numbers, case folded, without stop words, stemmed. One object serves many threads."""

    def __init__(self) -> None:
        self._local = threading.local()

    def words(self, text: str) -> list[str]:
        """Tokens of a document or query, in order."""
        folded = unicodedata.normalize("NFKC", text).casefold()
        words = [word for word in _TOKEN.findall(folded) if word not in _STOPWORDS]
        stemmed: list[str] = self._stemmer().stemWords(words)
        return stemmed

    def _stemmer(self) -> Any:
        # A stemmer holds buffers of its own, so threads may not share one.
        if not hasattr(self._local, "stemmer"):
            import Stemmer

            self._local.stemmer = Stemmer.Stemmer("english")
        return self._local.stemmer


class Bm25Index:
    """A finished index. Open it with `open_index`; `search` may be called from many threads at once."""

    def __init__(self, folder: Path) -> None:
        import bm25s
        import numpy as np

        self.folder = folder
        self.num_documents: int = orjson.loads((folder / _META).read_bytes())["num_documents"]
        self._engine = bm25s.BM25.load(folder, mmap=True, show_progress=False, auto_compile=False)
        self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        with (folder / "documents.jsonl").open("rb") as stream:
            self._documents = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._tokenizer = Tokenizer()

    def search(self, query: str, top_n: int) -> list[Hit]:
        """At most `top_n` documents that share a token with the query, best first, ties in corpus order.

        A query without a known token, or `top_n` below 1, finds nothing.
        """
        import numpy as np

        vocabulary = self._engine.vocab_dict
        words = self._tokenizer.words(query[:MAX_QUERY_CHARS])
        ids = [vocabulary[word] for word in words if word in vocabulary]
        if not ids or top_n < 1:
            return []
        scores = self._engine.get_scores_from_ids(ids)
        found = np.flatnonzero(scores > 0)
        if len(found) > top_n:
            least = np.partition(scores[found], len(found) - top_n)[len(found) - top_n]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:top_n]
        return [self._hit(int(number), float(scores[number])) for number in best]

    def _hit(self, number: int, score: float) -> Hit:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        document = orjson.loads(self._documents[start:end])
        return Hit(document["id"], document["title"], document["text"], score)


def open_index(
    corpus: Sequence[Path],
    *,
    digests: Sequence[str] | None = None,
    cache: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Bm25Index:
    """Open the index of these corpus files, building it first where the cache does not have it.

    `digests` are the files' SHA-256 as far as known. Processes that want the same index wait for the one that builds
    it. Raises DataError for a bad corpus and StorageError where the cache cannot be written.
    """
    digests = list(digests) if digests is not None else [file_sha256(path) for path in corpus]
    name = f"bm25-{fingerprint(digests)[:32]}"
    cache = cache if cache is not None else default_cache()
    folder = cache / name
    if is_complete(folder):
        return _opened(folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _exclusive(cache / f"{name}.lock"):
            if not is_complete(folder):
                _build_into(folder, corpus, digests, on_progress)
    except OSError as error:
        raise StorageError(
            f"the search index cannot be kept in {cache}: {error.strerror or error}; "
            "free space there, or set TREADLE_CACHE to another folder"
        ) from error
    return _opened(folder)


def _opened(folder: Path) -> Bm25Index:
    try:
        return Bm25Index(folder)
    except OSError as error:
        raise StorageError(
            f"the search index {folder} cannot be read: {error.strerror or error}; "
            "check the disk, or delete that folder: it is built again"
        ) from error


def is_complete(folder: Path) -> bool:
    """Whether an index is there with all its files in full length."""
    try:
        files: dict[str, int] = orjson.loads((folder / _META).read_bytes())["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _build_into(
    folder: Path, corpus: Sequence[Path], digests: Sequence[str], on_progress: Callable[[int], None] | None
) -> None:
    """Build beside the folder and move it into place; the caller holds the lock of this index."""
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)
    building = folder.parent / f".{folder.name}-{uuid.uuid4().hex[:8]}"
    building.mkdir()
    try:
        build(building, read_corpus(corpus), on_progress)
        for path, expected in zip(corpus, digests, strict=True):
            if file_sha256(path) != expected:
                raise DataError(f"corpus {path} was changed while its index was built; start again")
        _seal(building)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def build(folder: Path, documents: Iterable[Document], on_progress: Callable[[int], None] | None = None) -> None:
    """Write index and documents into an empty folder. Memory: 4 bytes a token, and bm25s' arrays."""
    import bm25s
    import numpy as np

    tokenizer = Tokenizer()
    vocabulary: dict[str, int] = {}
    token_ids: list[array[int]] = []
    offsets = array("q", [0])
    with (folder / "documents.jsonl").open("wb") as stream:
        for document in documents:
            words = tokenizer.words(document.contents)
            token_ids.append(array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in words]))
            line = {"id": document.id, "title": document.title, "text": document.text}
            offsets.append(offsets[-1] + stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)))
            if on_progress is not None and len(token_ids) % 10_000 == 0:
                on_progress(len(token_ids))
    if not vocabulary:
        raise DataError("the corpus has no document with a word to search for")
    np.save(folder / "offsets.npy", np.frombuffer(offsets, dtype=np.int64))
    engine = bm25s.BM25(k1=_K1, b=_B, method="lucene", auto_compile=False)
    engine.index((token_ids, vocabulary), create_empty_token=False, show_progress=False)
    engine.save(folder, show_progress=False)
    (folder / _META).write_bytes(orjson.dumps({"num_documents": len(token_ids)}))


def _seal(folder: Path) -> None:
    """Record the length of every file and put all of them on disk."""
    meta = orjson.loads((folder / _META).read_bytes())
    meta["files"] = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != _META}
    (folder / _META).write_bytes(orjson.dumps(meta))
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
