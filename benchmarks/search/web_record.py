"""Measure the web record: adding to a run's store, export, unpacking the artifact, look-ups, sizes of real pages.

    python -m benchmarks.search.web_record [--entries 5000] [--folder /tmp] [--pages FOLDER_OF_HTML] [--json]

Pages are random English-like words of 20,000 characters. `--pages` reads some 200 of the HTML files of at least 20 kB
in a folder, and compares the size of an entry of each with that of the compressed page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.core.store.keyed_store import KeyedStore
from treadle.core.store.storage import LocalStorage
from treadle.web.keys import page_key
from treadle.web.record.folder import open_record
from treadle.web.record.stored_entries import bounded, entries_of, packed, unpacked
from treadle.web.record.table import write_record
from treadle.web.types import Entry, PageEntry

TEXT_CHARS = 20_000
LOOK_UPS = 2_000
NUM_PAGES = 200
MIN_BYTES = 20_000


def page(number: int) -> Entry:
    """Return a page with a text of its own."""
    source = random.Random(number)
    words = ["".join(source.choices("etaoinshrdlucmfw", k=source.randint(2, 9))) for _ in range(2_000)]
    text = " ".join(source.choices(words, k=TEXT_CHARS // 6))[:TEXT_CHARS]
    url = f"https://site-{number % 97}.test/{number}"
    return PageEntry(page_key(url), url, "2026-05-01T12:00:00+00:00", url, "Title", text, "text/html", reader="r 1")


def timed_adds(folder: Path, entries: list[tuple[str, bytes]], num_threads: int) -> tuple[float, float]:
    """Return adds per second, and the median time of one in milliseconds."""
    store = KeyedStore(LocalStorage(folder), "runs/r/store/web")

    def add(entry: tuple[str, bytes]) -> float:
        before = time.perf_counter()
        store.add(*entry)
        return time.perf_counter() - before

    with ThreadPoolExecutor(num_threads) as threads:
        started = time.perf_counter()
        took = list(threads.map(add, entries))
        return len(entries) / (time.perf_counter() - started), statistics.median(took) * 1000


def measured(folder: Path, num_entries: int) -> dict[str, Any]:
    """Measure all figures except those of real pages."""
    os.environ["TREADLE_CACHE"] = str(folder / "cache")
    entries = [(entry.key, packed(entry)) for entry in map(page, range(num_entries))]
    found: dict[str, Any] = {"entries": num_entries, "packed_bytes": statistics.mean(len(v) for _, v in entries)}
    found["adds_per_s_4_threads"], _ = timed_adds(folder / "four", entries[: num_entries // 5], 4)
    found["adds_per_s"], found["add_ms"] = timed_adds(folder / "one", entries, 1)
    store = KeyedStore(LocalStorage(folder / "one"), "runs/r/store/web")
    started = time.perf_counter()
    met = ((entry, None) for entry in entries_of(store))
    ref = write_record(LocalStorage(folder / "one"), met, made_by="benchmark", work="work")
    found["export_s"] = time.perf_counter() - started
    artifact = folder / "one" / ref.folder
    found["artifact_mib"] = ref.num_bytes / 2**20
    started = time.perf_counter()
    record = open_record(artifact)
    found["unpack_s"] = time.perf_counter() - started
    started = time.perf_counter()
    open_record(artifact).close()
    found["open_again_ms"] = (time.perf_counter() - started) * 1000
    keys = random.Random(0).choices([key for key, _ in entries], k=LOOK_UPS)
    started = time.perf_counter()
    for key in keys:
        record.get(key)
    found["look_up_ms"] = (time.perf_counter() - started) * 1000 / LOOK_UPS
    started = time.perf_counter()
    for _ in range(5):
        pq.ParquetFile(artifact / "data/part-00000.parquet").read_row_group(0)
    found["row_group_ms"] = (time.perf_counter() - started) * 1000 / 5
    return found


def real_pages(folder: Path) -> dict[str, Any]:
    """Compare sizes of entries with their HTML files.

    The files are read in this process without confinement, since they are the user's own.
    """
    from resiliparse.extract.html2text import extract_plain_text

    raw, kept, num_pages = 0, 0, 0
    read_s = unpack_s = 0.0
    paths = sorted(path for path in folder.rglob("*.html") if path.stat().st_size >= MIN_BYTES)
    for path in paths[:: max(1, len(paths) // NUM_PAGES)]:
        body = path.read_bytes()
        started = time.perf_counter()
        text = extract_plain_text(body.decode("utf-8", "replace"), main_content=False)
        read_s += time.perf_counter() - started
        entry = bounded(PageEntry("0" * 32, path.as_uri(), "", text=text))
        value = packed(entry)
        started = time.perf_counter()
        unpacked(value, "")
        unpack_s += time.perf_counter() - started
        raw, kept, num_pages = raw + len(zlib.compress(body)), kept + len(value), num_pages + 1
    each = {"read_ms": read_s * 1000 / num_pages, "unpack_ms": unpack_s * 1000 / num_pages}
    return {"pages": num_pages, "raw_packed_bytes": raw / num_pages, "entry_packed_bytes": kept / num_pages, **each}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=5000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--pages", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="treadle-web-record-", dir=options.folder))
    try:
        found = measured(folder, options.entries)
        if options.pages is not None:
            found |= real_pages(options.pages)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:24} {value:,.3f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
