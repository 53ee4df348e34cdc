"""Table of recorded web searches and pages."""

from __future__ import annotations

import pyarrow as pa

from treadle.core.tables import TABLES, Table, column

WEB_RECORD = Table(
    "web_record",
    1,
    ("key",),
    pa.schema(
        [
            column("key", pa.string(), "32 hex digits: digest of query and language, or of the address of a page"),
            column("kind", pa.string(), "search or page"),
            column("request", pa.string(), "the query, or the address in normal form"),
            column("language", pa.string(), "en or zh: of a search", nullable=True),
            column("provider", pa.string(), "provider of a search", nullable=True),
            column("loose_key", pa.string(), "digest of the words alone: of an imported search", nullable=True),
            column("hits", pa.string(), "JSON list of at most 20 hits: of a search", nullable=True),
            column(
                "text",
                pa.string(),
                "text of a page, or of a search that was recorded as text; cut at 50,000 characters",
                nullable=True,
            ),
            column("final_url", pa.string(), "URL of a page after redirects", nullable=True),
            column("title", pa.string(), "of a page", nullable=True),
            column("media_type", pa.string(), "of a page", nullable=True),
            column(
                "failure", pa.string(), "reason code if a page could not be read or a query was refused", nullable=True
            ),
            column("detail", pa.string(), "the same in words", nullable=True),
            column("reader", pa.string(), "program that extracted the text of a page, with its version", nullable=True),
            column("recorded_at", pa.string(), "UTC, ISO 8601"),
        ]
    ),
    "Recorded web searches and pages, sorted by key.",
    required=False,
)

TABLES[WEB_RECORD.kind] = WEB_RECORD  # no stage produces it
