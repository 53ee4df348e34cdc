"""Data types of model access: requests, completions, server facts and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from treadle.core.llm.config import Sampling


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Request for one raw completion.

    Attributes:
        prompt: Token ids of the whole context if the server takes them, else its text.
        max_tokens: Most new tokens of this request; replaces `sampling.max_tokens`.
        sampling: Sampling parameters.
        stop: Strings that end the answer; the one that did is part of the text.
        seed: 0 <= seed < 2**63, derived by the caller from the request's content, never from its time.
        scores_prompt: Whether to return the log-probabilities of the prompt, which must then be token ids (vLLM).
    """

    prompt: list[int] | str
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int
    scores_prompt: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call that a chat service returned: `arguments` is JSON text as the model wrote it, which may be invalid.

    `id` is the service's own; empty if it gave none.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """Answer of a model.

    Attributes:
        text: The new text, with the stop string that ended it, unless `stop_dropped`.
        token_ids: The sampled ids as the server returned them, or None in text mode.
        finish_reason: `stop` (a stop string or the model's own end), `length` or `content_filter`.
        stop_reason: The stop string that ended it, if one did.
        prompt_tokens: As counted by the server.
        completion_tokens: As counted by the server.
        endpoint: URL of the server that answered. Volatile, like `seconds` and `retries`.
        seconds: Seconds from the call to the answer, including retries and waiting.
        retries: Attempts after the first, hedges included.
        logprobs: Log-probabilities of the sampled ids, one for each, if training asks for them.
        prompt_logprobs: Log-probabilities of the prompt's ids after the first, if the request asked for them.
        entropies: Entropies in nats at the first sampled ids, if training asks for them.
        stop_dropped: Whether a stop string ended the answer, or may have, and the server left it out of the text. It is
            `stop_reason` if that is a stop string, else it is unknown. See `treadle.core.llm.stops`.
        notes: Oddities of this answer and of the malformed ones before it: keys of
            `treadle.core.llm.oddities.ODDITIES`.
        tool_calls: Tool calls that the server returned outside the text (chat route).
        reasoning: Reasoning that the server returned outside the text (chat route).
    """

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    stop_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    endpoint: str
    seconds: float
    retries: int
    logprobs: tuple[float, ...] | None = None
    entropies: tuple[float, ...] | None = None
    stop_dropped: bool = False
    notes: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    prompt_logprobs: tuple[float, ...] | None = None

    def to_json(self) -> bytes:
        """Return the bytes for the journal."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Completion:
        """Parse the bytes of `to_json`; raise ValueError for other bytes."""
        try:
            fields = orjson.loads(data)
            for name in ("token_ids", "logprobs", "entropies", "notes", "prompt_logprobs"):
                if fields.get(name) is not None:
                    fields[name] = tuple(fields[name])
            fields["tool_calls"] = tuple([ToolCall(**call) for call in fields.get("tool_calls", ())])
            return cls(**fields)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"a stored answer of a model cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Result of `ModelPool.check`.

    Attributes:
        model: The model's name in requests.
        max_model_len: Window in tokens: the configured one, else the smallest that a server reports, else None.
        token_ids: Whether every endpoint takes and returns token ids, and `token_ids` is not `off`.
        endpoints: URLs that answered.
        refused_keys: Keys that chat requests must leave out; see `treadle.core.llm.hosted.refused_keys`.
        stops: URL -> how the endpoint treats stop strings; see `treadle.core.llm.stops`.
        splits_reasoning: Whether a chat answer in the preflight had its reasoning outside the text.
        needs_reasoning: Whether the service demands that reasoning back, next to the calls that it led to.
    """

    model: str
    max_model_len: int | None
    token_ids: bool
    endpoints: tuple[str, ...]
    refused_keys: tuple[str, ...] = ()
    stops: Mapping[str, str] = field(default_factory=dict)
    splits_reasoning: bool = False
    needs_reasoning: bool = False


@dataclass(slots=True)
class EndpointCounts:
    """Running counts of one endpoint.

    Attributes:
        answered: Requests that it answered.
        sampled_tokens: Tokens of these answers.
        errors: Failed attempts by class of failure (see `docs/behaviour/llm.md`), and how often it fell silent.
    """

    answered: int = 0
    sampled_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """State of one endpoint at one moment.

    Attributes:
        health: `healthy`, `trial` (just back) or `down`.
        in_flight: Requests on the wire.
        queued: Requests that wait for a slot.
        last_error: Last failure that counted against its health; empty if there was none.
    """

    url: str
    health: str
    in_flight: int
    queued: int
    answered: int
    sampled_tokens: int
    errors: dict[str, int]
    last_error: str


@dataclass(slots=True)
class PoolStats:
    """Running counts of one pool.

    Attributes:
        completions: Calls that returned an answer.
        retries: Retried attempts by class of failure, and hedges as `late` (see `docs/behaviour/llm.md`).
        in_flight: Requests on the wire now.
        peak_in_flight: Largest value of `in_flight`.
        odd: Odd answers by kind, malformed ones included: keys of `treadle.core.llm.oddities.ODDITIES`.
    """

    completions: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    peak_in_flight: int = 0
    odd: Counter[str] = field(default_factory=Counter)
