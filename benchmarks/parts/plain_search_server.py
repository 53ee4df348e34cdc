"""Serve searches one request at a time, as a floor for `retriever_service.py`.

    python -m benchmarks.parts.plain_search_server ENGINE CORPUS       # ENGINE: treadle or bm25s; prints its port

A FastAPI server that searches inside the handler, as the servers of Search-R1 and FlashRAG do. It searches Treadle's
own index, or bm25s as in its README.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

Search = Callable[[str, int], list[dict[str, Any]]]


class SearchRequest(BaseModel):
    """Body of a search request."""

    query: str
    top_n: int = 10


def over_treadle(corpus: Path) -> Search:
    """Return a search over the same index as the service under test."""
    from treadle.retriever.config import IndexSettings
    from treadle.retriever.open_index import open_index

    index = open_index(IndexSettings(corpus=(corpus,)))
    return lambda query, top_n: [{"id": hit.id, "contents": hit.contents} for hit in index.search(query, top_n)]


def over_bm25s(corpus: Path) -> Search:
    """Return a search over bm25s with English stop words and stemmer, as retrieval servers use it."""
    import bm25s
    import Stemmer

    documents = [orjson.loads(line) for line in corpus.read_bytes().splitlines()]
    texts = [f"{document['title']}\n{document['text']}" for document in documents]
    tokenizer = bm25s.tokenization.Tokenizer(stopwords="en", stemmer=Stemmer.Stemmer("english"))
    engine = bm25s.BM25()
    engine.index(tokenizer.tokenize(texts, show_progress=False), show_progress=False)

    def search(query: str, top_n: int) -> list[dict[str, Any]]:
        tokens = tokenizer.tokenize([query], update_vocab=False, show_progress=False)
        rows, _ = engine.retrieve(tokens, k=top_n, show_progress=False)
        return [{"id": documents[row]["id"], "contents": texts[row]} for row in rows[0]]

    return search


def main() -> None:
    """Serve until killed."""
    engine, corpus = sys.argv[1], Path(sys.argv[2])
    search = (over_treadle if engine == "treadle" else over_bm25s)(corpus)
    app = FastAPI()

    @app.post("/search")
    async def answer(request: SearchRequest) -> list[dict[str, Any]]:
        """Search within the event loop."""
        return search(request.query, request.top_n)

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
