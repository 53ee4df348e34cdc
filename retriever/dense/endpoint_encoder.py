"""Encode texts at servers with the OpenAI embeddings API: concurrent batches, and retries by class of failure."""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import itertools
import random
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from yarl import URL

from treadle.core.errors import ConfigError, EndpointUnavailable, ModelError
from treadle.core.llm.client import HttpClient, Target
from treadle.core.llm.failures import FINAL_KINDS, Failure, failure_of
from treadle.core.untrusted.json_text import load_json
from treadle.retriever.config import EncoderSettings
from treadle.retriever.dense.encoders import IN_IDENTITY, Encoder

if TYPE_CHECKING:
    from treadle.retriever.dense.encoders import Vectors

T = TypeVar("T")
_IN_FLIGHT: Final = 8
_RETRIES: Final = 6
_TIMEOUT_S: Final = 120.0
_CHARS_PER_TOKEN: Final = 8
"""Characters per token kept in a request; the server truncates by tokens, this only bounds the size of requests."""


class EndpointEncoder(Encoder):
    """An encoder on servers. Opening it requests one vector to learn the length. Requests run in a separate thread."""

    def __init__(self, settings: EncoderSettings, *, backoff_s: float = 0.5) -> None:
        """Connect; raise ConfigError if a prefix is not set, ModelError if no server answers."""
        if settings.query_prefix is None or settings.passage_prefix is None:
            raise ConfigError(
                f"a server does not report the prefixes of {settings.model!r}; set encoder.query_prefix and "
                "encoder.passage_prefix as its model card says (empty texts if it uses none)"
            )
        self._settings = settings
        self._backoff_s = backoff_s
        self._targets = [Target(endpoint) for endpoint in settings.endpoints]
        self._turn = itertools.count()
        self._lock = threading.Lock()
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embeddings", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(_make_client())
            probe = self._run(self._embed(["dimension"], len(self._targets)))
        except BaseException:
            self.close()
            raise
        identity = {
            "type": "endpoint",
            "name": settings.model,
            "model": {"name": settings.model, "revision": settings.revision},
            **settings.model_dump(include={"query_prefix", "passage_prefix", *IN_IDENTITY}),
        }
        super().__init__(probe.shape[1], identity)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._is_closing:
                work.close()
                raise EndpointUnavailable("the encoder is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EndpointUnavailable("the encoder was closed before its server answered") from None

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Vectors:
        import numpy as np

        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        settings = self._settings
        chars = _CHARS_PER_TOKEN * (settings.query_max_tokens if is_query else settings.passage_max_tokens)
        cut = [text[:chars] for text in texts]
        batches = [cut[start : start + settings.batch_size] for start in range(0, len(cut), settings.batch_size)]
        return np.concatenate(self._run(self._embed_all(batches)))

    async def _embed_all(self, batches: list[list[str]]) -> list[Vectors]:
        slots = asyncio.Semaphore(_IN_FLIGHT * len(self._targets))

        async def one(batch: list[str]) -> Vectors:
            async with slots:
                return await self._embed(batch, _RETRIES)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(batch)) for batch in batches]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _embed(self, texts: list[str], retries: int) -> Vectors:
        """Send one request; after a transient failure retry it at the next endpoint."""
        for attempt in itertools.count():
            target = self._targets[next(self._turn) % len(self._targets)]
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    return await self._ask(target, texts)
            except TimeoutError:
                failure = Failure("timeout", f"no answer within {_TIMEOUT_S:.0f} s")
            except Failure as error:
                failure = error
            message = f"embeddings of {target.url}: {failure}"
            if failure.kind in FINAL_KINDS:
                raise ModelError(message) from failure
            if attempt >= retries:
                raise EndpointUnavailable(f"{message}; gave up after {attempt + 1} attempts") from failure
            pause = self._backoff_s * 2**attempt * random.uniform(0.5, 1.0)
            await asyncio.sleep(max(pause, failure.retry_after_s or 0.0))
        raise AssertionError

    async def _ask(self, target: Target, texts: list[str]) -> Vectors:
        body = orjson.dumps({"model": self._settings.model, "input": texts, "encoding_format": "base64"})
        status, headers, data = await self._client.post(URL(f"{target.url}/embeddings"), body, target.headers)
        if status != 200:
            raise failure_of(status, headers, data)
        return _vectors(data, len(texts))

    def close(self) -> None:
        """End requests in progress, close the connections and end the thread."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        # Else their threads would wait forever, and keep the process from ending.
        requests = asyncio.all_tasks() - {asyncio.current_task()}
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        if hasattr(self, "_client"):
            await self._client.close()


async def _make_client() -> HttpClient:
    return HttpClient(10.0, 256 << 20)


def _vectors(data: bytes, count: int) -> Vectors:
    """Return a reply's vectors in the order of the request, from numbers or base64 of little-endian float32."""
    import numpy as np

    try:
        items = sorted(load_json(data)["data"], key=lambda item: item["index"])
        if [item["index"] for item in items] != list(range(count)):
            raise ValueError("indexes")
        rows = [_row(item["embedding"]) for item in items]
        vectors = np.stack(rows)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise Failure("malformed", f"the answer does not contain {count} vectors of equal length") from None
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise Failure("malformed", "the answer's vectors are not rows of finite numbers")
    return vectors


def _row(embedding: str | list[float]) -> Vectors:
    import numpy as np

    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4").astype(np.float32)
    return np.asarray(embedding, dtype=np.float32)
