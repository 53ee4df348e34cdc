"""What goes to a model and what comes back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import orjson

from treadle.core.llm.config import Sampling


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One raw completion. `prompt` is token ids where the server takes them, else text.

    Attributes:
        prompt: Ids or text of the whole context.
        max_tokens: Most new tokens of this request; replaces `sampling.max_tokens`.
        sampling: How to draw.
        stop: Strings that end the answer; the one that did is part of the text.
        seed: 0 <= seed < 2**63, chosen by the caller from what is asked, never from when.
    """

    prompt: list[int] | str
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        text: The new text, stop string included.
        token_ids: The sampled ids as the server gave them, or None in text mode.
        finish_reason: `stop` (a stop string or the model's own end), `length` or `content_filter`.
        stop_reason: The stop string that ended it, if one did.
        prompt_tokens: As counted by the server.
        completion_tokens: As counted by the server.
        endpoint: URL of the server that answered. Volatile, like the next two.
        seconds: From the call to the answer, retries and waiting included.
        retries: Failed attempts before this answer.
        logprobs: Log-probabilities of the sampled ids, one for each, where training asks for them.
        entropies: Entropies in nats at the first sampled ids, likewise.
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

    def to_json(self) -> bytes:
        """Bytes for the journal."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, data: bytes) -> Completion:
        """Inverse of `to_json`; raises ValueError or TypeError for other bytes."""
        fields = orjson.loads(data)
        ids = fields["token_ids"]
        fields["token_ids"] = None if ids is None else tuple(ids)
        for name in ("logprobs", "entropies"):
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What `ModelPool.check` found out.

    Attributes:
        model: The model's name in requests.
        max_model_len: Window in tokens: the configured one, else the smallest a server named, else None.
        token_ids: Whether every endpoint takes and returns token ids, and they are wanted.
        endpoints: URLs that answered.
        refused_keys: What requests over the chat route have to do without; see `treadle.core.llm.hosted.refused_keys`.
    """

    model: str
    max_model_len: int | None
    token_ids: bool
    endpoints: tuple[str, ...]
    refused_keys: tuple[str, ...] = ()


@dataclass(slots=True)
class PoolStats:
    """Running counts of one pool.

    Attributes:
        requests: Calls to `complete` and `chat`.
        completions: Calls that returned an answer.
        retries: Failed attempts that were tried again, by class (see `docs/behaviour/llm.md`).
        prompt_tokens: Sum over answers.
        completion_tokens: Sum over answers.
        in_flight: Requests on the wire now.
        peak_in_flight: Largest value of `in_flight`.
    """

    requests: int = 0
    completions: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
