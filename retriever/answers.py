"""Encode requests to search services, and parse their answers.

All functions are pure and work on bytes. A valid answer becomes a list of `Document`. For any other answer they raise
`Failure`, which states what was expected and what was received. See docs/behaviour/retrieval.md, "At services".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from yarl import URL

from treadle.core.llm.failures import Failure, excerpt
from treadle.core.untrusted.json_text import load_json
from treadle.retriever.corpus import Document

_MAX_KEYS = 6
"""Number of keys of an unexpected object that a message shows."""
_DOCUMENT = '{"id", "contents"}, {"id", "title", "text"} or a text'


@dataclass(frozen=True, slots=True)
class SearchApi:
    """The request and answer format of one kind of search service."""

    route: str
    body: Callable[[str, int], dict[str, Any]]
    """Function from a query and the number of documents to the request body."""
    expected: str
    """Description of the answer, for messages."""
    documents: Callable[[Any], list[Any]]
    """Function that returns the unchecked documents of an answer; raises Failure if the answer has another shape."""


def search_api_of(url: str) -> tuple[SearchApi, URL]:
    """Return the api of the service at an address, and the URL for its searches.

    An address that ends in `/search` or `/retrieve` is that URL; otherwise `/search` is appended.
    """
    address = URL(url)
    if api := _SEARCH_APIS.get(address.name):
        return api, address
    return SEARCH, URL(f"{url}/search")


def parse_documents(data: bytes, api: SearchApi) -> list[Document]:
    """Parse an answer, best document first; raise Failure of kind `malformed` with what was received and expected."""
    try:
        try:
            answer = load_json(data)
        except orjson.JSONDecodeError as error:
            raise Failure("malformed", f"no JSON ({error.msg})") from None
        return [_document(number, found) for number, found in enumerate(api.documents(answer), start=1)]
    except Failure as failure:
        raise Failure("malformed", f"got {failure}, expected {api.expected}: {excerpt(data)}") from None


def _found(answer: Any) -> list[Any]:
    """Return the documents of `[document, ...]` or of `[documents, scores]`."""
    if not isinstance(answer, list):
        raise Failure("malformed", _kind(answer))
    if len(answer) != 2 or not all(isinstance(part, list) for part in answer):
        return answer
    documents: list[Any] = answer[0]
    scores: list[Any] = answer[1]
    if len(documents) != len(scores):
        raise Failure("malformed", f"{len(documents)} documents with {len(scores)} scores")
    for number, score in enumerate(scores, start=1):
        _check_score(number, score)
    return documents


def _result(answer: Any) -> list[Any]:
    """Return the documents of `{"result": [[document, ...]]}`, which has one list for the only query."""
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, list):
        raise Failure("malformed", _kind(answer))
    if len(result) != 1:
        raise Failure("malformed", f"{len(result)} results for 1 query")
    if not isinstance(result[0], list):
        raise Failure("malformed", f"{_kind(result[0])} as the result of the query")
    return [_unwrapped(number, found) for number, found in enumerate(result[0], start=1)]


def _unwrapped(number: int, found: Any) -> Any:
    """Return the document of `{"document": ..., "score": ...}`."""
    if not (isinstance(found, dict) and "document" in found):
        return found
    if "score" in found:
        _check_score(number, found["score"])
    return found["document"]


def _check_score(number: int, score: Any) -> None:
    """Raise Failure unless a score is a finite number: anything else comes from a failed search."""
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise Failure("malformed", f"{_kind(score)} as the score of document {number}")


def _document(number: int, found: Any) -> Document:
    if isinstance(found, str):
        return _split("", found)
    if not isinstance(found, dict):
        raise Failure("malformed", f"{_kind(found)} as document {number}")
    name, contents, title, text = (found.get(key) for key in ("id", "contents", "title", "text"))
    if isinstance(name, bool) or not (name is None or isinstance(name, str | int)):
        raise Failure("malformed", f"{_kind(name)} as 'id' of document {number}")
    name = "" if name is None else str(name)
    if isinstance(contents, str):
        return _split(name, contents)
    if contents is None and isinstance(text, str) and (title is None or isinstance(title, str)):
        return Document(name, title or "", text)
    raise Failure("malformed", f"document {number} without a text in 'contents' or 'text': {_kind(found)}")


def _split(name: str, contents: str) -> Document:
    """Make a document from its contents; the first line is the title if there are more lines."""
    title, newline, text = contents.partition("\n")
    return Document(name, title, text) if newline else Document(name, "", contents)


def _kind(value: Any) -> str:
    """Describe a JSON value in words."""
    if isinstance(value, Mapping):
        keys = ", ".join(sorted(map(repr, value))[:_MAX_KEYS])
        return f"an object with {excerpt(keys.encode('utf-8', 'replace'))}" if keys else "an empty object"
    words = {type(None): "null", bool: "true or false", str: "a text", list: "a list"}
    return words.get(type(value), "a number")


SEARCH = SearchApi(
    "/search",
    lambda query, top_n: {"query": query, "top_n": top_n},
    f"a JSON list of documents ({_DOCUMENT}), or [documents, scores]",
    _found,
)
RETRIEVE = SearchApi(
    "/retrieve",
    # Search-R1's own service answers 500 to a request without scores.
    lambda query, top_n: {"queries": [query], "topk": top_n, "return_scores": True},
    f'{{"result": [[{{"document": ..., "score": ...}}, ...]]}}, each document {_DOCUMENT}',
    _result,
)
_SEARCH_APIS = {"search": SEARCH, "retrieve": RETRIEVE}
