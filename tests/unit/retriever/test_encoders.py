"""Encoders: BERT in numpy against transformers' numbers, what a model's files tell, a server of embeddings."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web
from support.tiny_bert import write_tiny_bert

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, EndpointUnavailable, EngineError, ModelError
from treadle.retriever.config import EncoderSettings
from treadle.retriever.dense.encoder_models import find_model
from treadle.retriever.dense.encoders import Encoder
from treadle.retriever.dense.endpoint_encoder import EndpointEncoder
from treadle.retriever.dense.open_encoder import open_encoder

PLAIN = {"query_prefix": "", "passage_prefix": "", "device": "cpu"}
# Output of transformers 4 and torch, float32, for the tiny model: the mean over the tokens, and the first token.
MEANS = {
    "red tower": [2.2571, -0.12698, -3.0952, 1.28895, 1.75702, -2.33612, -0.27951, 2.06437],
    "the blue gate of the red tower": [2.25444, -0.12463, -3.09543, 1.28569, 1.75906, -2.33654, -0.28109, 2.06759],
    "": [2.25682, -0.13059, -3.09609, 1.29484, 1.76062, -2.33499, -0.28041, 2.06004],
}
FIRST = [2.25761, -0.12864, -3.09516, 1.29085, 1.75714, -2.33585, -0.27889, 2.06289]


def encoder_of(folder: Path, **settings: Any) -> Encoder:
    return open_encoder(EncoderSettings.model_validate({"type": "model", "model": str(folder), **PLAIN, **settings}))


def test_numpy_bert_matches_transformers(tmp_path: Path) -> None:
    encoder = encoder_of(write_tiny_bert(tmp_path), normalize=False)
    together = encoder.encode_passages(list(MEANS))
    assert together == pytest.approx(np.array(list(MEANS.values())), abs=2e-5)
    for text, vector in zip(MEANS, together, strict=True):
        assert encoder.encode_queries([text])[0] == pytest.approx(vector, abs=1e-5)
    assert encoder_of(tmp_path, pooling="cls", normalize=False).encode_queries(["red tower"])[0] == pytest.approx(
        FIRST, abs=2e-5
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("F16", 0.01), ("BF16", 0.05)])
def test_two_byte_weights_are_read(tmp_path: Path, dtype: str, tolerance: float) -> None:
    encoder = encoder_of(write_tiny_bert(tmp_path, dtype), normalize=False)
    assert encoder.encode_queries(["red tower"])[0] == pytest.approx(MEANS["red tower"], abs=tolerance)


def test_longer_texts_are_truncated_to_the_token_limit(tmp_path: Path) -> None:
    encoder = encoder_of(write_tiny_bert(tmp_path), query_max_tokens=4, passage_max_tokens=100)
    query, same = encoder.encode_queries(["red tower gate gate", "red tower"])
    assert query == pytest.approx(same, abs=1e-6)
    assert encoder.encode_passages(["red tower gate"])[0] != pytest.approx(same, abs=1e-6)
    assert encoder.encode_passages(["gate " * 1000]).shape == (1, 8)  # Never beyond the model's positions.


def test_model_is_identified_by_its_content(tmp_path: Path) -> None:
    one, moved, other = tmp_path / "one", tmp_path / "moved" / "one", tmp_path / "other"
    for folder in (one, moved):
        write_tiny_bert(folder)
    write_tiny_bert(other, "F16")
    identities = [encoder_of(folder).identity for folder in (one, moved, other)]
    assert identities[0] == identities[1]
    assert identities[0]["model"] != identities[2]["model"]


@pytest.mark.parametrize(
    ("name", "prefixes", "pooling"),
    [
        ("e5-base-v2", ("query: ", "passage: "), "mean"),
        ("multilingual-e5-large", ("query: ", "passage: "), "mean"),
        ("bge-base-en-v1.5", ("Represent this sentence for searching relevant passages: ", ""), "cls"),
        ("contriever", ("", ""), "mean"),
    ],
)
def test_published_names_imply_prefixes_and_pooling(
    tmp_path: Path, name: str, prefixes: tuple[str, str], pooling: str
) -> None:
    model = find_model(EncoderSettings(type="model", model=str(write_tiny_bert(tmp_path / name))))
    assert ((model.query_prefix, model.passage_prefix), model.pooling) == (prefixes, pooling)


def test_model_files_override_its_name_and_settings_override_both(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "e5-base-v2")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "Q: ", "document": ""}}))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 8, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    )
    model = find_model(EncoderSettings(type="model", model=str(folder)))
    assert (model.query_prefix, model.passage_prefix, model.pooling) == ("Q: ", "passage: ", "cls")
    given = EncoderSettings(type="model", model=str(folder), query_prefix="", pooling="mean")
    assert (find_model(given).query_prefix, find_model(given).pooling) == ("", "mean")


@pytest.mark.parametrize("name", ["my-e5-finetune", "e5", "wiki-bge"])
def test_model_without_a_known_prefix_is_refused(tmp_path: Path, name: str) -> None:
    write_tiny_bert(tmp_path / name)
    with pytest.raises(ConfigError, match=r"give its query prefix; set encoder.query_prefix"):
        find_model(EncoderSettings(type="model", model=str(tmp_path / name)))


def test_unknown_pooling_and_folder_without_model_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "m")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ConfigError, match="pooling_mode_max_tokens; set encoder.pooling"):
        encoder_of(folder)
    with pytest.raises(ConfigError, match=r"no config.json"):
        encoder_of(tmp_path)
    (folder / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b'{"a": 1}')
    with pytest.raises(ConfigError, match="no floating-point tensor"):
        encoder_of(folder, pooling="mean")


def test_unavailable_hub_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(EngineError, match="'some/encoder' is not a local folder and cannot be downloaded"):
        open_encoder(EncoderSettings(type="model", model="some/encoder"))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"type": "model"}, "needs its `model`"),
        ({"type": "endpoint", "model": "m"}, "needs at least one of `endpoints`"),
        ({"pooling": "max"}, "pooling"),
    ],
)
def test_incomplete_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(EncoderSettings, data=settings)


Answer = Callable[[list[str]], web.Response]


def vectors_for(texts: list[str], as_numbers: bool = False) -> web.Response:
    """Two numbers per text, last text first, as base64 or as numbers."""
    rows = [np.array([len(text), text.count("a")], dtype="<f4") for text in texts]
    data = [
        {"index": number, "embedding": row.tolist() if as_numbers else base64.b64encode(row.tobytes()).decode()}
        for number, row in enumerate(rows)
    ]
    return web.json_response({"data": data[::-1]})


@asynccontextmanager
async def embeddings(answers: list[Answer]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a server that answers each request with the next of `answers`, the last one repeatedly."""
    requests: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        requests.append(body)
        return (answers.pop(0) if len(answers) > 1 else answers[0])(body["input"])

    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests
    finally:
        await runner.cleanup()


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


def client(url: str, **settings: Any) -> EndpointEncoder:
    given = {"type": "endpoint", "model": "m", "endpoints": [{"url": url}], "normalize": False, **PLAIN, **settings}
    return EndpointEncoder(EncoderSettings.model_validate(given), backoff_s=0.0)


def refuse(status: int, **headers: str) -> Answer:
    return lambda texts: web.json_response({"error": {"message": "not now"}}, status=status, headers=headers)


@pytest.mark.parametrize("as_numbers", [False, True])
async def test_server_vectors_are_returned_in_order_and_in_batches(as_numbers: bool) -> None:
    async with embeddings([lambda texts: vectors_for(texts, as_numbers)]) as (url, requests):

        def use() -> Any:
            with_prefix = client(url, batch_size=3, passage_prefix="a")
            try:
                return with_prefix.dimension, with_prefix.encode_passages(["x" * n for n in range(10)]).tolist()
            finally:
                with_prefix.close()
                with_prefix.close()

        dimension, vectors = await in_thread(use)
    assert dimension == 2
    assert vectors == [[n + 1, 1] for n in range(10)]
    assert sorted(len(request["input"]) for request in requests[1:]) == [1, 3, 3, 3]
    assert requests[0]["model"] == "m"
    assert not [thread for thread in threading.enumerate() if thread.name == "embeddings"]


async def test_transient_encoder_failures_are_retried() -> None:
    passing: list[Answer] = [
        vectors_for,
        refuse(500),
        refuse(429, **{"Retry-After": "0"}),
        lambda texts: web.Response(body=b"{"),
        vectors_for,
    ]
    async with embeddings(passing) as (url, requests):

        def use() -> Any:
            encoder = client(url)
            try:
                return encoder.encode_queries(["aa"]).tolist()
            finally:
                encoder.close()

        assert await in_thread(use) == [[2, 2]]
    assert len(requests) == 5


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (refuse(401), ModelError, r"HTTP 401: not now; check the key"),
        (refuse(503), EndpointUnavailable, r"HTTP 503: not now; gave up after 2 attempts"),
        (lambda texts: vectors_for([*texts, "x"]), EndpointUnavailable, "does not contain 1 vectors"),
    ],
)
async def test_server_that_is_not_an_encoder_is_named(answer: Answer, error: type[Exception], match: str) -> None:
    async with embeddings([answer]) as (url, _):
        with pytest.raises(error, match=match):
            await in_thread(lambda: client(url))


def test_closing_ends_a_request_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for the server would keep an interrupted command from ending."""
    asked, failures = threading.Event(), list[EndpointUnavailable]()

    async def ask(encoder: EndpointEncoder, target: object, texts: list[str]) -> np.ndarray:
        if texts != ["dimension"]:
            asked.set()
            await asyncio.Event().wait()
        return np.zeros((1, 2), np.float32)

    def search() -> None:
        try:
            encoder.encode_queries(["heron"])
        except EndpointUnavailable as failure:
            failures.append(failure)

    monkeypatch.setattr(EndpointEncoder, "_ask", ask)
    encoder = client("http://127.0.0.1:9/v1")
    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    assert asked.wait(30)
    encoder.close()
    thread.join(30)
    assert not thread.is_alive() and len(failures) == 1
    with pytest.raises(EndpointUnavailable, match="closed"):
        encoder.encode_queries(["heron"])


def test_server_model_needs_its_prefixes() -> None:
    settings = {"type": "endpoint", "model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
    with pytest.raises(ConfigError, match=r"set encoder.query_prefix and encoder.passage_prefix"):
        open_encoder(EncoderSettings.model_validate(settings))


class Overflowing(Encoder):
    """Computes with numbers that are too small."""

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Any:
        return np.array([[np.nan if text == "b" else 1.0, 0.0] for text in texts], np.float32)


@pytest.mark.parametrize("normalize", [True, False])
def test_vector_that_is_not_finite_is_an_error(normalize: bool) -> None:
    identity = {"name": "small", "query_prefix": "", "passage_prefix": "", "normalize": normalize}
    encoder = Overflowing(2, identity)
    assert encoder.encode_passages(["a"]).tolist() == [[1.0, 0.0]]
    for encode in (encoder.encode_passages, encoder.encode_queries):
        with pytest.raises(ModelError, match="encoder small gave a vector with a number that is not finite"):
            encode(["a", "b"])
