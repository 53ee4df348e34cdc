"""The encoder installed by pip, downloaded into its own cache and used for search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from treadle.retriever.config import EncoderSettings, IndexSettings
from treadle.retriever.dense.open_encoder import open_encoder
from treadle.retriever.open_index import open_index


def test_embeds_paraphrases_near_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path))
    encoder = open_encoder(EncoderSettings())
    sentences = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
    vectors = encoder.encode_passages(sentences)
    # As transformers and torch have it.
    assert vectors[0] @ vectors[1:].T == pytest.approx(np.array([0.7553, -0.1050]), abs=1e-4)
    rows = [{"id": number, "text": text} for number, text in enumerate(sentences)]
    (tmp_path / "corpus.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    with open_index(IndexSettings(engine="dense", corpus=(tmp_path / "corpus.jsonl",))) as index:
        assert index.search("Somebody holds an infant", 1)[0].id == "2"
