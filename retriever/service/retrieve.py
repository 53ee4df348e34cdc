"""Answer `POST /retrieve`, the route of Search-R1 and of Agent Foundation Models; see docs/behaviour/services.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from treadle.retriever.service.http import read_request

if TYPE_CHECKING:
    from treadle.retriever.service.app import RetrievalService

DEFAULT_TOPK = 3


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`."""

    model_config = ConfigDict(extra="ignore")

    queries: list[str]
    topk: int | None = Field(default=None, ge=1)
    """Number of documents per query; null means 3."""
    return_scores: bool = False
    """Whether each document comes with its score, as `{"document": ..., "score": ...}`."""


async def retrieve(service: RetrievalService, request: Request) -> dict[str, Any]:
    """Return `{"result": [...]}` with a list of documents per query, which is empty for a blank query.

    Raises HTTPException. The status of a busy service is one that clients of this route retry.
    """
    asked = await read_request(service.settings, request, RetrieveRequest)
    if len(asked.queries) > service.settings.max_waiting:
        raise HTTPException(422, f"a request may have at most {service.settings.max_waiting} queries")
    written = [query for query in asked.queries if query.strip()]
    try:
        rankings = iter(await service.search(written, asked.topk or DEFAULT_TOPK))
    except HTTPException as refused:
        if refused.status_code != 429:
            raise
        raise HTTPException(503, "Server too busy, please retry later", refused.headers) from None
    result: list[list[Any]] = []
    for query in asked.queries:
        ranking = next(rankings) if query.strip() else []
        documents: list[Any] = list(service.documents(ranking))
        if asked.return_scores:
            documents = [
                {"document": document, "score": score} for document, (_, score) in zip(documents, ranking, strict=True)
            ]
        result.append(documents)
    return {"result": result}
