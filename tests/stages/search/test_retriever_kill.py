"""A build that is killed: nothing of it is served, and its vectors are not made twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from support.sweep import sampled

from treadle.retriever.config import IndexSettings
from treadle.retriever.folder import read_manifest
from treadle.retriever.open_index import open_index

CHILD = """
import os, signal, sys
import treadle.retriever.dense.embedding as embedding
from treadle.retriever.config import IndexSettings
from treadle.retriever.dense.encoders import HashingEncoder
from treadle.retriever.open_index import open_index

embedding.SHARD_DOCUMENTS = 10
encode, left = HashingEncoder._encode, int(sys.argv[2])

def counted(self, texts, *, is_query):
    global left
    if left < len(texts):
        os.kill(os.getpid(), signal.SIGKILL)
    left -= len(texts)
    return encode(self, texts, is_query=is_query)

HashingEncoder._encode = counted
with open_index(IndexSettings.model_validate_json(sys.argv[1])) as index:
    print(1000 - left if left > 100 else left)
"""


def build(settings: IndexSettings, passages: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD, settings.model_dump_json(), str(passages)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("engine", sampled(["dense", "hybrid"], ["hybrid"]))
def test_killed_build_is_never_served_and_resumes(tmp_path: Path, engine: str) -> None:
    rows = [{"id": number, "text": f"tower {number}"} for number in range(60)]
    (tmp_path / "corpus.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    cache = tmp_path / "cache"
    settings = IndexSettings.model_validate(
        {
            "engine": engine,
            "corpus": tmp_path / "corpus.jsonl",
            "cache_folder": cache,
            "encoder": {"type": "hashing", "dimension": 512},
        }
    )
    for passages in (0, 20, 10):
        assert build(settings, passages).returncode == -signal.SIGKILL
        assert not any(read_manifest(folder) for folder in cache.iterdir() if folder.is_dir())
    done = build(settings, 1000)
    assert (done.returncode, done.stdout.strip()) == (0, "30"), done.stderr
    with open_index(settings) as index:
        assert [index.search(f"tower {number}", 1)[0].id for number in (0, 29, 30, 59)] == ["0", "29", "30", "59"]
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [index.folder.name]
