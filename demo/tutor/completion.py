"""Turn a request body into an answer: validation, the role's text, stop strings, length; without I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.core.chat import ChatTokenizer
from treadle.demo.tutor import roles
from treadle.demo.tutor.conversation import Conversation, read_messages, read_prompt
from treadle.demo.tutor.critic import reply_to_task
from treadle.demo.tutor.dialogue import next_dialogue_turn
from treadle.demo.tutor.ledger.replies import LEDGER_ROLES
from treadle.demo.tutor.message_parts import BadParts, read_parts
from treadle.demo.tutor.pages import next_page_turn
from treadle.demo.tutor.planning import next_planning_turn
from treadle.demo.tutor.policy import next_turn
from treadle.demo.tutor.seeded_draws import Draws
from treadle.demo.tutor.settings import MODELS, TutorSettings

_DEFAULT_COMPLETION_TOKENS = 16
_NOT_CONTENT = frozenset({"stream", "stream_options", "user", "request_id", "return_token_ids"})


class RequestError(Exception):
    """Error status in response to a request."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True, slots=True)
class TutorReply:
    """An answer: text, its token ids, and how it ended."""

    text: str
    ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | None
    prompt_tokens: int


def request_digest(body: Mapping[str, Any]) -> str:
    """Return 32 hex digits over model, prompt or messages, seed and all parameters of a request."""
    content = {key: value for key, value in body.items() if key not in _NOT_CONTENT}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


class ReplyWriter:
    """Answers requests with one set of settings and one tokenizer. Equal requests get equal answers."""

    def __init__(self, settings: TutorSettings, tokenizer: ChatTokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer

    def write(self, body: Mapping[str, Any], *, chat: bool) -> TutorReply:
        """Answer a completion or chat request; raise RequestError."""
        model = body.get("model", MODELS[0])
        if model not in MODELS:
            raise RequestError(404, f"The model `{model}` does not exist.", "NotFoundError")
        if body.get("n", 1) != 1:
            raise RequestError(400, "n must be 1: the tutor gives one answer per request")
        prompt, conversation, num_prompt = self._read_chat(body) if chat else self._read_prompt(body)
        limit = self._limit(body, num_prompt, chat=chat)
        draws = Draws("reply", prompt, body.get("seed"), self._settings.persona, model)
        text, stop = _cut(self._text(model, conversation, draws), body)
        return self._finish(text, stop, limit, num_prompt)

    def _read_prompt(self, body: Mapping[str, Any]) -> tuple[str, Conversation, int]:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return prompt, read_prompt(prompt), len(self._tokenizer.encode(prompt))
        size = self._tokenizer.vocab_size
        if not isinstance(prompt, list) or not prompt or set(map(type, prompt)) != {int}:
            raise RequestError(400, "prompt must be one text or one non-empty list of token ids")
        if min(prompt) < 0 or max(prompt) >= size:
            raise RequestError(400, f"Token id {max(prompt)} is out of vocabulary")
        text = self._tokenizer.decode(prompt)
        return text, read_prompt(text), len(prompt)

    def _read_chat(self, body: Mapping[str, Any]) -> tuple[str, Conversation, int]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError(400, "messages must be a non-empty list")
        if body.get("tools"):
            raise RequestError(400, "the tutor calls tools by tags in its text, never natively: leave out tools")
        try:
            texts, pictures = read_parts(messages)
        except BadParts as error:
            raise RequestError(400, str(error)) from None
        conversation = replace(read_messages(texts), pictures=pictures)
        return self._tokenizer.render(texts), conversation, len(self._tokenizer.prompt_ids(texts))

    def _limit(self, body: Mapping[str, Any], num_prompt: int, *, chat: bool) -> int:
        window = self._settings.max_model_len
        given = body.get("max_completion_tokens") or body.get("max_tokens")
        limit = given if given is not None else max(1, window - num_prompt) if chat else _DEFAULT_COMPLETION_TOKENS
        if type(limit) is not int or limit < 1:
            raise RequestError(400, f"max_tokens must be at least 1, got {limit!r}")
        if num_prompt + limit > window:
            raise RequestError(
                400,
                f"This model's maximum context length is {window} tokens. However, you requested "
                f"{num_prompt + limit} tokens ({num_prompt} in the messages, {limit} in the completion). "
                "Please reduce the length of the messages or completion.",
            )
        return limit

    def _text(self, model: str, conversation: Conversation, draws: Draws) -> str:
        role = roles.role_of(model, conversation)
        if (ledger_role := LEDGER_ROLES.get(role)) is not None:
            return ledger_role(conversation, self._settings.rates_for(model), draws)
        if role == "policy":
            return next_turn(conversation, self._settings.rates_for(model), draws)
        if role == "planner" or role == "sequential":
            return next_planning_turn(conversation, role)
        if role == "asker" or role == "guesser" or role == "human":
            return next_dialogue_turn(conversation, role, self._settings.rates_for(model).guess, draws)
        if role == "page-writer" or role == "page-guesser" or role == "page-human":
            return next_page_turn(conversation, role, draws)
        if role in ("critic", "refiner"):
            return reply_to_task(roles.guess_task(conversation), conversation, self._settings.rates_for(model), draws)
        if role == "summarizer":
            return roles.summarize(conversation.user)
        return roles.judge(conversation.user, gullible=role == "gullible-judge")

    def _finish(self, text: str, stop: str | None, limit: int, num_prompt: int) -> TutorReply:
        ids = self._tokenizer.encode(text)
        if len(ids) > limit:
            ids = ids[:limit]
            return TutorReply(self._tokenizer.decode(ids), tuple(ids), "length", None, num_prompt)
        if stop is None and len(ids) < limit and self._tokenizer.eos_ids:
            ids.append(min(self._tokenizer.eos_ids))
        return TutorReply(text, tuple(ids), "stop", stop, num_prompt)


def _cut(text: str, body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Cut a text at its first stop string, which is kept if the request asks for it; raise RequestError."""
    given = body.get("stop") or []
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestError(400, "stop must be a text or a list of texts")
    found = min(((text.find(stop), stop) for stop in stops if stop in text), default=None)
    if found is None:
        return text, None
    start, stop = found
    return text[: start + len(stop) if body.get("include_stop_str_in_output") else start], stop
