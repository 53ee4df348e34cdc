"""Schemas of tools."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from treadle.agent.tools.schema import ToolSchema


@pytest.fixture
def fetched() -> Iterator[tuple[str, list[str]]]:
    """URL of a JSON document, and the paths that were fetched."""
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/schema", paths
        server.shutdown()


def test_no_reference_is_fetched_from_the_network(fetched: tuple[str, list[str]]) -> None:
    url, paths = fetched
    schema = ToolSchema("a", "", {"type": "object", "properties": {"x": {"$ref": url}}})
    assert schema.argument_error({"x": 1}) == ""
    assert not paths


NO_SCHEMAS: list[dict[str, object]] = [
    {"$ref": "#"},
    {"properties": {"x": {"$ref": "#/$defs/none"}}},
    {"$ref": 5},
    {"$schema": 5},
    {"$id": "http://[", "$ref": "a"},
    {"required": 5},
    {"properties": 5},
    {"properties": {"x": {"minimum": "a"}}},
    {"properties": {"x": {"multipleOf": 0}}},
    {"additionalProperties": {"pattern": "("}, "properties": {"y": {"pattern": "("}}},
]


@pytest.mark.parametrize("parameters", NO_SCHEMAS)
def test_a_schema_that_cannot_be_evaluated_checks_nothing(parameters: dict[str, object]) -> None:
    assert ToolSchema("a", "", parameters).argument_error({"x": 1}) == ""


@pytest.mark.parametrize("depth", [100, 101, 1000, 100_000])
def test_deep_arguments_do_not_escape_the_check(depth: int) -> None:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    schema = ToolSchema("a", "", {"properties": {"x": {"type": "string"}}})
    assert schema.argument_error({"x": value}) == "they are nested more than 100 levels deep"
    assert schema.argument_error({"y": value})


def test_the_place_of_a_wrong_argument_is_named() -> None:
    schema = ToolSchema("a", "", {"properties": {"x": {"properties": {"y": {"type": "integer"}}}}})
    assert schema.argument_error({"x": {"y": "z"}}) == "x.y: 'z' is not of type 'integer'"
