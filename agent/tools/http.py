"""Call an HTTP endpoint as a tool: arguments as a JSON body or a query, the answer's text as the result.

The address is the user's own, like a model endpoint's. Arguments of the model go into the body or the query alone.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from multidict import CIMultiDict
from pydantic import Field, field_validator, model_validator
from yarl import URL

from treadle.agent.tools.outcome import CallContext, OutcomeStatus, ToolOutcome, clip
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.tools.settings import ToolResources, ToolSettings
from treadle.core.chat_turns import well_formed
from treadle.core.config import Operational, config_folders
from treadle.core.errors import ConfigError, ToolError
from treadle.core.llm.client import MIN_SECRET_CHARS, AnswerTooLarge, HttpClient, key_of, without_key
from treadle.core.llm.config import EndpointSettings
from treadle.core.llm.failures import Failure, excerpt, parse_retry_after
from treadle.core.work_clock import work_clock

if TYPE_CHECKING:
    from treadle.agent.contract import Outcome, Task
    from treadle.agent.tools.source import ToolResume, ToolSource

_log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 4 << 20
_CONNECT_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 8.0
_ERROR_CHARS = 300
_MAX_ASKED_PAUSE_S = 60.0
"""Longest pause that a server may ask for."""
_CHARSETS = frozenset({"ascii", "iso8859-1", "cp1252", "utf-16", "shift_jis", "gb18030", "gbk", "big5", "euc_jp"})
_TEXT_TYPE = re.compile(
    r"text/.*|application/(?:.*[+./-])?(?:json|xml|yaml|toml|javascript|csv|x-ndjson)", re.IGNORECASE
)
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_RETRIED = frozenset({408, 425, 429})
NO_TEXT = "The call succeeded. The answer is empty."

Sleep = Callable[[float], Awaitable[object]]


class ToolUnavailable(ToolError):
    """Failure of an endpoint to answer after all retries; the call stays pending."""

    retryable = True


class HttpToolSettings(ToolSettings):
    """HTTP endpoint that is called as a tool."""

    type: Literal["http"] = "http"
    url: str
    """Address of the endpoint, `http` or `https`, without credentials."""
    method: Literal["POST", "GET"] = "POST"
    """How arguments are sent: `POST` as a JSON object in the body, `GET` in the query."""
    description: str = Field(min_length=1)
    """Text for the model: what the tool does."""
    parameters: dict[str, Any] = Field(default={}, validate_default=True)
    """JSON schema of the arguments, an object; properties that it does not name are refused unless it has
    `additionalProperties`."""
    schema_file: Operational[Path | None] = None
    """JSON file with that schema, in the working folder or next to the configuration; read into `parameters`."""
    api_key_env: Operational[str | None] = None
    """Name, in capitals, of the environment variable with the key that is sent as `Authorization: Bearer`."""
    headers_env: Operational[dict[str, str]] = {}
    """Names of environment variables with the values of further headers, such as `{ X-Api-Key = "SHOP_KEY" }`."""
    timeout_s: Operational[float] = Field(default=30.0, gt=0)
    """Seconds for one answer; an attempt that takes longer is retried."""
    retry_limit: Operational[int] = Field(default=3, ge=0)
    """Retries of a call after HTTP 429 and 5xx, broken connections and timeouts; then the rollout stays pending."""
    max_output_chars: int | None = Field(default=10_000, ge=0)
    """Longest result in characters, cut in its middle; none means no limit."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        # First, and without repeating the value: it may hold a secret.
        if "@" in value or "#" in value:
            raise ValueError("the address of a tool has no credentials and no fragment; use api_key_env for a key")
        EndpointSettings(url=value.partition("?")[0])
        return value

    @field_validator("api_key_env", "headers_env")
    @classmethod
    def _check_variables(cls, value: Any) -> Any:
        for name in value.values() if isinstance(value, dict) else (value,):
            EndpointSettings(url="http://localhost", api_key_env=name)
        for header in value if isinstance(value, dict) else ():
            if not _HEADER.fullmatch(header):
                raise ValueError(f"{header!r} is no name of a header")
        return value

    @model_validator(mode="before")
    @classmethod
    def _read_schema(cls, data: Any) -> Any:
        """Read the schema from its file, unless `parameters` has it already, as in stored settings."""
        if (
            isinstance(data, Mapping)
            and isinstance(data.get("schema_file"), (str, Path))
            and not data.get("parameters")
        ):
            return {**data, "parameters": _schema_in(Path(data["schema_file"]))}
        return data

    @field_validator("parameters")
    @classmethod
    def _check_parameters(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked_schema(value)

    @property
    def keeps_state(self) -> bool:
        """See `ToolSettings`."""
        return False

    @property
    def gives_outcome(self) -> bool:
        """See `ToolSettings`."""
        return False

    def known_schemas(self, name: str) -> tuple[ToolSchema, ...]:
        """See `ToolSettings`."""
        try:
            return (ToolSchema(name, self.description, self.parameters),)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def source(self, name: str, resources: ToolResources) -> ToolSource:
        """See `ToolSettings`. Raises ConfigError for a name that no tool can have."""
        return HttpTool(self, self.known_schemas(name)[0])


class HttpTool:
    """Source of one endpoint, which all episodes share."""

    resume: ToolResume = "stateless"

    def __init__(self, settings: HttpToolSettings, schema: ToolSchema, *, sleep: Sleep = asyncio.sleep) -> None:
        """Prepare the tool; tests replace `sleep`."""
        self.schemas: Sequence[ToolSchema] = (schema,)
        self._name = schema.name
        self._settings = settings
        self._url = URL(settings.url)
        self._sleep = sleep
        self._random = random.Random(0)
        self._headers: CIMultiDict[str] = CIMultiDict()
        self._secrets: tuple[str, ...] = ()
        self._http: HttpClient | None = None

    async def __aenter__(self) -> HttpTool:
        """Read the keys. Raises ConfigError, which names a variable that has no usable key."""
        settings, what = self._settings, f"tool {self._name}"
        headers = {header: key_of(variable, what) for header, variable in settings.headers_env.items()}
        secrets = list(headers.values())
        if settings.api_key_env is not None:
            secrets.append(key_of(settings.api_key_env, what))
            headers["Authorization"] = f"Bearer {secrets[-1]}"
        self._secrets = tuple(secrets)
        self._headers = CIMultiDict({"Accept-Encoding": "identity", "Content-Type": "application/json", **headers})
        self._http = HttpClient(_CONNECT_TIMEOUT_S, MAX_ANSWER_BYTES)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    def facts(self) -> dict[str, str]:
        """Return nothing."""
        return {}

    async def episode(self, task: Task, seed: int) -> HttpTool:
        """Return the shared endpoint."""
        return self

    async def outcome(self) -> Outcome | None:
        """Return None: there is no state."""
        return None

    async def close(self) -> None:
        """Do nothing: the endpoint is shared."""

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, deadline: float, context: CallContext
    ) -> ToolOutcome:
        """Call the endpoint. The wait counts as infrastructure, so it holds the work clock.

        Raises ToolUnavailable if the endpoint does not answer, and ToolError for an answer that shows that no call can
        succeed.
        """
        loop, place = asyncio.get_running_loop(), f"tool {name}, {self._url.with_query(None)}"
        started, failures, pause_s = loop.time(), 0, _FIRST_PAUSE_S
        with work_clock().hold():
            while True:
                try:
                    status, text = await self._ask(arguments)
                    break
                except AnswerTooLarge:
                    status, text = "error", f"The answer is larger than {MAX_ANSWER_BYTES} bytes; ask for less."
                    break
                except Failure as failure:
                    if failure.kind in ("refused", "malformed"):
                        raise ToolError(f"{place}: {failure}") from None
                    failures += 1
                    if failures > self._settings.retry_limit:
                        raise ToolUnavailable(f"{place}: {failure}; retries: {failures - 1}") from None
                    asked_s = min(failure.retry_after_s or 0.0, _MAX_ASKED_PAUSE_S)
                    _log.info("tool %s is called again: %s", name, failure)
                await self._sleep(max(asked_s, pause_s * self._random.uniform(0.5, 1.0)))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return ToolOutcome(status, clip(text, self._settings.max_output_chars), loop.time() - started)

    async def _ask(self, arguments: Mapping[str, Any]) -> tuple[OutcomeStatus, str]:
        """Send one request; return status and text for the model. Raises Failure."""
        assert self._http is not None
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                if self._settings.method == "GET":
                    url = self._url.update_query(list(_query(arguments)))
                    reply = await self._http.get(url, self._headers)
                else:
                    reply = await self._http.post(self._url, json.dumps(dict(arguments)).encode(), self._headers)
        except TimeoutError:
            raise Failure("timeout", f"no answer in {self._settings.timeout_s:g} s") from None
        status, headers, data = reply
        data = self._masked(status, data)
        _check_status(status, headers, data)
        kind = headers.get("Content-Type", "").partition(";")[0].strip()
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Failure("refused", "the answer is compressed, though identity was asked for")
        if kind and not _TEXT_TYPE.fullmatch(kind):
            return "error", f"The answer is of type {excerpt(kind.encode('utf-8', 'replace'))}, which is no text."
        text = well_formed(data.decode(_charset(headers.get("Content-Type", "")), "replace"))
        if status >= 400:
            return "error", f"HTTP {status}: {text}" if text.strip() else f"HTTP {status}"
        return "ok", text if text.strip() else NO_TEXT

    def _masked(self, status: int, data: bytes) -> bytes:
        """Return a reply without the secrets of the request; raise Failure if a successful reply contains one."""
        for secret in self._secrets:
            if status < 300 and len(secret) < MIN_SECRET_CHARS:
                continue
            masked = without_key(data, secret)
            if status < 300 and masked is not data:
                raise Failure("malformed", "the answer contains a key of the request")
            data = masked
        return data


def _check_status(status: int, headers: Mapping[str, str], data: bytes) -> None:
    """Raise Failure for a status that does not depend on the arguments of the call."""
    said = f"HTTP {status}: {excerpt(data)}"
    if status in _RETRIED or status >= 500:
        raise Failure("server", said, parse_retry_after(headers.get("Retry-After")))
    if status in (401, 407):
        raise Failure("refused", f"{said}; the variables in `api_key_env` and `headers_env` hold the keys")
    if 300 <= status < 400:
        place = excerpt(headers.get("Location", "").encode("utf-8", "replace"))
        raise Failure("refused", f"HTTP {status}, moved to {place}; set `url` to that address")


def _query(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs (name, value) of a URL's query: a list repeats its name, null is left out, objects are JSON."""
    pairs = []
    for name, value in arguments.items():
        for one in value if isinstance(value, list) else (value,):
            if one is not None:
                text = one if isinstance(one, str) else json.dumps(one)
                pairs.append((well_formed(name), well_formed(text)))
    return pairs


def _charset(content_type: str) -> str:
    found = re.search(r"charset=\"?([\w.:-]{1,40})", content_type, re.IGNORECASE)
    try:
        name = codecs.lookup(found[1]).name if found else "utf-8"
    except LookupError:
        name = "utf-8"
    return name if name in _CHARSETS else "utf-8"


def _schema_in(file: Path) -> dict[str, Any]:
    folders = (Path.cwd(), *config_folders.get())
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        raise ValueError(f"schema_file: there is no file {' or '.join(str(folder / file) for folder in folders)}")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"schema_file: {path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"schema_file: {path} holds no JSON schema of an object")
    return found


def _checked_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with defaults for missing keys. Raises ValueError if it is invalid or describes no object."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False, **parameters}
    if schema["type"] != "object":
        raise ValueError('parameters: the JSON schema of arguments has type = "object"')
    try:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
    except ImportError:
        raise ValueError("schemas are checked by jsonschema: pip install 'treadle[tools]'") from None
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        place = ".".join(map(str, ("parameters", *error.absolute_path)))
        raise ValueError(f"{place}: {error.message[:_ERROR_CHARS]}") from None
    return schema
