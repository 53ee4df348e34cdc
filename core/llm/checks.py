"""Check answers and refusals against the request: one that cannot be true is malformed, never a result.

Otherwise, a server that miscounts tokens, returns the ids of another text or repeats its prompt would corrupt budgets
and training data. This runs for every answer, so the usual case takes only a few comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treadle.core.chat import ChatTokenizer
from treadle.core.llm.failures import Failure, malformed
from treadle.core.llm.wire import Answer

SLACK_TOKENS = 16
"""Tokens by which honest counts may differ: BOS and EOS, and a stop string that is counted or not."""
_SLACK_CHARS = 64
"""Characters by which the ids' text may exceed the answer's, besides the stop string: a token across the end."""
_MAX_CHARS_PER_TOKEN = 1024
_ECHO_CHARS = 64
_ECHO_IDS = 16
_END_IDS = 16
_WINDOW_SLACK = 64
"""Tokens that a server may add to a prompt."""
_OUTPUT_LIMIT = "output limit was reached"
_CHAT_SLACK = 1024
"""Tokens that a chat template may add to the messages."""


@dataclass(slots=True)
class PromptFacts:
    """Data of a request that its answer is checked against. Not frozen, because one is created per request.

    Attributes:
        model: The model's name in the request.
        max_tokens: Most new tokens.
        stops: Stop strings that were sent.
        num_prompt: Tokens of the prompt if it was sent as ids, else its bytes, which bound its tokens. None over the
            chat route, whose template may add anything.
        in_ids: Whether the prompt was sent as ids.
        num_bytes: Bytes of the messages of a chat.
        head: Beginning of a long prompt; None for a short one, and over the chat route.
        vocabulary: Tokenizer of the token ids, if known.
        stop_styles: URL -> how the endpoint treats stop strings; see `treadle.core.llm.stops`.
    """

    model: str
    max_tokens: int
    stops: tuple[str, ...] = ()
    num_prompt: int | None = None
    in_ids: bool = False
    num_bytes: int = 0
    head: str | tuple[int, ...] | None = None
    vocabulary: ChatTokenizer | None = None
    stop_styles: Mapping[str, str] | None = None


def prompt_facts(
    model: str,
    prompt: list[int] | str,
    max_tokens: int,
    stops: tuple[str, ...],
    vocabulary: ChatTokenizer | None,
    stop_styles: Mapping[str, str] | None,
) -> PromptFacts:
    """Return the data that the answer to a prompt is checked against; keeps only the beginning of the prompt."""
    head: str | tuple[int, ...] | None = None
    if isinstance(prompt, str):
        num_prompt = len(prompt) if prompt.isascii() else len(prompt.encode("utf-8", "replace"))
        if len(prompt) >= _ECHO_CHARS:
            head = prompt[:_ECHO_CHARS]
    else:
        num_prompt = len(prompt)
        if num_prompt >= _ECHO_IDS:
            head = tuple(prompt[:_ECHO_IDS])
    in_ids = not isinstance(prompt, str)
    return PromptFacts(model, max_tokens, stops, num_prompt, in_ids, 0, head, vocabulary, stop_styles)


def checked(answer: Answer, asked: PromptFacts) -> Answer:
    """Return an answer with notes on its oddities; raise Failure of kind `malformed` if it cannot be true."""
    used, ids = answer.completion_tokens, answer.token_ids
    if ids is not None:
        _check_ids(answer, ids, asked)
    elif answer.text and not used:
        raise malformed("usage", f"the answer reports no tokens for {len(answer.text)} characters")
    num_chars = len(answer.text) + len(answer.reasoning)
    if answer.tool_calls:
        num_chars += sum([len(call.name) + len(call.arguments) for call in answer.tool_calls])
    if num_chars > _MAX_CHARS_PER_TOKEN * (used + SLACK_TOKENS):
        raise malformed("usage", f"the answer reports {used} tokens for {num_chars} characters")
    prompt = asked.num_prompt
    if prompt is None:
        return _noted(answer, asked)
    if used > asked.max_tokens + SLACK_TOKENS:
        raise malformed("too_long", f"the answer has {used} tokens, more than max_tokens = {asked.max_tokens}")
    least = prompt - SLACK_TOKENS if asked.in_ids else 0
    if not least <= answer.prompt_tokens <= prompt + SLACK_TOKENS:
        unit = "tokens" if asked.in_ids else "bytes"
        raise malformed("usage", f"the answer reports {answer.prompt_tokens} tokens for a prompt of {prompt} {unit}")
    _check_echo(answer, asked)
    return answer if answer.model is None or answer.model == asked.model else _noted(answer, asked)


def checked_refusal(failure: Failure, asked: PromptFacts, max_model_len: int | None) -> Failure:
    """Return a refusal, or a malformed answer if the server calls a prompt too long that fits the window it reports."""
    # A reached output limit concerns an answer that did not fit into max_tokens, however short the prompt was.
    if failure.kind != "context" or max_model_len is None or _OUTPUT_LIMIT in str(failure):
        return failure
    if asked.num_prompt is None:
        length, unit, slack = asked.num_bytes, "bytes", _CHAT_SLACK
    else:
        length, unit, slack = asked.num_prompt, "tokens" if asked.in_ids else "bytes", _WINDOW_SLACK
    if length + asked.max_tokens + slack > max_model_len:
        return failure
    return malformed(
        "window",
        f"a prompt of {length} {unit} with max_tokens = {asked.max_tokens} fits the window of {max_model_len} tokens "
        f"that the server reports, but was refused: {failure}",
    )


def _check_ids(answer: Answer, ids: tuple[int, ...], asked: PromptFacts) -> None:
    used = answer.completion_tokens
    if not -SLACK_TOKENS <= used - len(ids) <= SLACK_TOKENS:
        raise malformed("usage", f"the answer reports {used} tokens and has {len(ids)} ids")
    vocabulary = asked.vocabulary
    if vocabulary is None:
        return
    if answer.largest_id >= vocabulary.vocab_size:
        largest = answer.largest_id
        raise malformed("unknown_ids", f"token id {largest} is beyond the vocabulary of {vocabulary.vocab_size}")
    text = answer.text
    if _ends_spell(ids, text, vocabulary):
        return
    if not _spells(vocabulary.decode(ids), text, asked.stops, vocabulary.added_tokens):
        raise malformed("ids_not_text", f"the {len(ids)} token ids of the answer do not spell its text")


def _ends_spell(ids: tuple[int, ...], text: str, vocabulary: ChatTokenizer) -> bool:
    """Return whether the first and the last of many ids match the text; decoding all of them takes much longer."""
    if len(ids) <= 4 * _END_IDS:
        return False
    decode = vocabulary.decode
    return text.startswith(decode(ids[:_END_IDS])) and text.endswith(decode(ids[-_END_IDS:]))


def _spells(spelled: str, text: str, stops: Sequence[str], added: frozenset[str]) -> bool:
    """Return whether the ids' text can be the answer's: one is a prefix of the other, and they end close together.

    Servers may leave out of the text special tokens, whitespace at either end, a stop string and the rest of its last
    token. They may leave out of the ids those of a stop string.
    """
    longest_stop = max(map(len, stops), default=0)
    if spelled.startswith(text) and len(spelled) - len(text) <= _SLACK_CHARS + longest_stop:
        return True
    of_ids, of_text = _bare(spelled, added), _bare(text, added)
    beyond = len(of_ids) - len(of_text)
    if beyond >= 0:
        return of_ids.startswith(of_text) and beyond <= _SLACK_CHARS + longest_stop
    return of_text.startswith(of_ids) and -beyond <= longest_stop


def _bare(text: str, added: frozenset[str]) -> str:
    """Return a text without whitespace, added tokens, and characters that were cut in the middle."""
    for token in sorted(added, key=len, reverse=True):
        text = text.replace(token, "")
    return "".join(text.replace("\ufffd", "").split())


def _check_echo(answer: Answer, asked: PromptFacts) -> None:
    head, ids = asked.head, answer.token_ids
    if isinstance(head, str):
        repeated = answer.text.startswith(head)
    elif head is not None and ids is not None:
        repeated = ids[:1] == head[:1] and ids[:_ECHO_IDS] == head
    else:
        return
    if repeated:
        raise malformed("echo", "the answer begins with its prompt")


def _noted(answer: Answer, asked: PromptFacts) -> Answer:
    notes = answer.notes
    if asked.num_prompt is None and answer.completion_tokens > asked.max_tokens + SLACK_TOKENS:
        notes = (*notes, "over_max_tokens")
    if answer.model is not None and not _same_model(answer.model, asked.model):
        notes = (*notes, "other_model")
    return answer if notes is answer.notes else replace(answer, notes=notes)


def _same_model(said: str, asked: str) -> bool:
    """Return whether two names may mean the same model: services add dates and leave out owners."""
    said, asked = said.lower(), asked.lower()
    return bool(said) and (said in asked or asked in said)
