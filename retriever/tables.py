"""Tables of the stage `index`."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import STRINGS, Table, column

INDEXES = Table(
    "indexes",
    1,
    ("fingerprint",),
    pa.schema(
        [
            column(
                "fingerprint", pa.string(), "64 hex digits: digest of everything that affects the answers of the index"
            ),
            column("engine", pa.string(), "bm25, dense or hybrid"),
            column("num_documents", pa.int64(), "documents, or passages if they are split"),
            column("encoder", pa.string(), "name of the encoder; null without vectors", nullable=True),
            column("dimension", pa.int64(), "length of its vectors", nullable=True),
            column("corpus_sha256", STRINGS, "content of the corpus files, in their order"),
            column("identity", pa.string(), "JSON object behind the fingerprint: corpus, words, encoder, vectors"),
        ]
    ),
    "The search index of a run. Its files are kept in the cache of each machine.",
)
