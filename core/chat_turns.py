"""Find what a chat template writes between two assistant turns, and what it rewrites as a conversation grows."""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from treadle.core.errors import ConfigError

Messages = Sequence[Mapping[str, str]]

_SHOWN_CHARS = 80
_QUESTION = {"role": "user", "content": "What is 2 + 2?"}
_BEGINNINGS: tuple[Messages, ...] = ([_QUESTION], [{"role": "system", "content": "Be brief."}, _QUESTION])
_PLAIN_TURNS = ("It is 4.", "First:\n\n- second\n  third")
_PADDED_TURNS = ("  It is 4. \n", "\n First:\n\n")
_THOUGHT = "Two and two."
_THOUGHTFUL_TURNS = (f"<think>\n{_THOUGHT}\n</think>\n\nIt is 4.", f"<think>{_THOUGHT}</think>It is 4.")


class TurnTokenizer(Protocol):
    """Part of `treadle.core.chat.ChatTokenizer` that this module uses."""

    folder: Path

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        ...

    def render(self, messages: Messages, *, open_turn: bool = True) -> str:
        """Return the messages as text."""
        ...

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Return the ids of the messages with the assistant's turn opened."""
        ...

    def reply_ids(self, messages: Messages) -> tuple[list[int], int]:
        """Return the ids between two turns, and how many of them end the earlier turn."""
        ...

    def reply_text(self, messages: Messages) -> str:
        """Return the text between two turns."""
        ...


def text_after_turn(tokenizer: TurnTokenizer, messages: Messages, *, open_turn: bool = True) -> str:
    """Return the text that follows an assistant's turn if `messages` come after it.

    Raises ConfigError if the template refuses the messages or drops the turn.
    """
    turn = unused_marker(messages) * 3
    conversation = [{"role": "user", "content": "?"}, {"role": "assistant", "content": turn}, *messages]
    _, found, text = tokenizer.render(conversation, open_turn=open_turn).rpartition(turn)
    if not found:
        raise ConfigError(f"chat template of {tokenizer.folder} does not render an assistant's turn")
    return text


def text_before_reply(tokenizer: TurnTokenizer, heads: Messages) -> tuple[Messages, Callable[[Messages], str]]:
    """Return messages with markers as content, and a function that renders what precedes the first of them.

    `heads` are the messages without content. The function renders the text from the end of the assistant's turn on. It
    raises ConfigError naming the role of the first message that the template refuses or does not write after that
    turn, in order.
    """
    if not heads:
        raise ValueError("a reply between two turns has at least one message")
    markers = [f"\ue000{index}\ue000" for index in range(len(heads))]
    probes = [{**head, "content": marker} for head, marker in zip(heads, markers, strict=True)]

    def render(messages: Messages) -> str:
        text = _accepted_text(tokenizer, messages)
        rest = text
        for marker, message in zip(markers, messages, strict=True):
            _, found, rest = rest.partition(marker)
            if not found:
                raise ConfigError(
                    f"chat template of {tokenizer.folder} does not write a message of role {message['role']!r} after "
                    "an assistant's turn; use a model whose template does, or an environment that writes other roles"
                )
        return text.partition(markers[0])[0]

    return probes, render


def _accepted_text(tokenizer: TurnTokenizer, messages: Messages) -> str:
    """Return the text after a turn; raise ConfigError naming the role of the first message that is refused."""
    try:
        return text_after_turn(tokenizer, messages)
    except ConfigError as error:
        refused = messages[-1]
        for index in range(1, len(messages)):
            try:
                text_after_turn(tokenizer, messages[:index])
            except ConfigError:
                refused = messages[index - 1]
                break
        raise ConfigError(
            f"{error}; it takes no message of role {refused['role']!r} at this place after an assistant's turn: use a "
            "model whose template does, or an environment that writes other roles"
        ) from error


def find_rewrites(tokenizer: TurnTokenizer, roles: Sequence[str]) -> dict[str, str]:
    """Compare conversations that are rendered turn by turn, as in a rollout, with the same ones rendered at once.

    Returns kind -> what differs, as the end of a sentence that begins with "The chat template". Kinds:

    - `thoughts`: drops or changes `<think>` blocks of earlier turns, even if it keeps turns without such blocks.
    - `white_space`: changes white space at the beginning or end of earlier turns.
    - `opening`: begins an earlier turn differently from the turn that it opens for the model (generation prompt).
    - `last_turn`: begins a turn differently if it is the last one of a finished conversation.
    - `turn_end`: ends a turn without an id at which the model stops.
    - `turns`: differs in another way, or refuses a conversation of several turns.
    - `tokens`: renders equal text, but some tokens cross the border of a turn.
    """
    found: dict[str, str] = {}
    replies = list(_accepted_replies(tokenizer, roles))
    for reply in replies:
        if not tokenizer.reply_ids(reply)[1]:
            between = _shown(tokenizer.reply_text(reply).partition(reply[0]["content"])[0])
            found["turn_end"] = f"writes {between} after a turn, which contains no id at which the model ends it"
    for beginning in _BEGINNINGS:
        if _refuses(tokenizer, beginning):
            continue
        for pair in itertools.product(replies, repeat=2):
            plain = _Growth(tokenizer, beginning, _PLAIN_TURNS, pair)
            _add(found, plain.differences())
            for kind, turns in (("white_space", _PADDED_TURNS), ("thoughts", _THOUGHTFUL_TURNS)):
                growth = _Growth(tokenizer, beginning, turns, pair)
                # A difference that plain turns show as well is not due to white space or thoughts.
                if not growth.keeps_turns or (plain.is_equal and not growth.is_equal):
                    _add(found, {kind: _turn_change(kind, growth.whole)})
    return found


def _add(found: dict[str, str], more: Mapping[str, str]) -> None:
    """Add differences by kind; `drops ...` replaces an earlier `changes ...` of the same kind."""
    for kind, fact in more.items():
        if kind not in found or fact.startswith("drops"):
            found[kind] = fact


def _turn_change(kind: str, whole: str) -> str:
    if kind == "white_space":
        return "changes white space at the ends of earlier turns"
    verb = "changes" if _THOUGHT in whole else "drops"
    return f"{verb} the thoughts (<think> blocks) of earlier turns"


class _Growth:
    """A conversation of two assistant turns and two replies: as it grows (`text`), and rendered as a `whole`."""

    def __init__(
        self, tokenizer: TurnTokenizer, beginning: Messages, turns: Sequence[str], replies: Sequence[Messages]
    ) -> None:
        self._tokenizer = tokenizer
        self._beginning = beginning
        self._turns = turns
        self._replies = replies
        self._messages = list(beginning)
        self.text = tokenizer.render(beginning)
        for turn, reply in zip(turns, replies, strict=True):
            self._messages += [{"role": "assistant", "content": turn}, *reply]
            self.text += turn + tokenizer.reply_text(reply)
        try:
            self.whole = tokenizer.render(self._messages)
        except ConfigError:
            self.whole = ""

    @property
    def is_equal(self) -> bool:
        """True if `whole` equals `text`."""
        return self.text == self.whole

    @property
    def keeps_turns(self) -> bool:
        """True if `whole` contains the turns unchanged and in order."""
        return re.search(".*".join(map(re.escape, self._turns)), self.whole, re.DOTALL) is not None

    def differences(self) -> dict[str, str]:
        """Return how `text` and `whole` differ, by kind, for turns without thoughts and outer white space."""
        if not self.whole:
            return {"turns": "refuses a conversation of several turns"}
        first = self._turns[0]
        before = self.whole.partition(first)[0]
        facts = self._last_turn(before) if self.keeps_turns else {}
        if self.is_equal:
            return facts | self._token_change()
        opened = self._tokenizer.render(self._beginning)
        closed = self._tokenizer.render(self._beginning, open_turn=False)
        common = os.path.commonprefix([before, opened])
        if not self.keeps_turns or len(common) < len(os.path.commonprefix([opened, closed])):
            return facts | {"turns": "writes earlier messages differently when the conversation continues"}
        if before == opened:
            return facts | {"turns": "writes later turns or replies differently from the first ones"}
        now, later = _shown(opened[len(common) :]), _shown(before[len(common) :])
        return facts | {"opening": f"begins the open turn with {now}, but earlier turns with {later}"}

    def _last_turn(self, before: str) -> dict[str, str]:
        """Return `last_turn` if the text before the first turn changes when that turn ends a finished conversation."""
        turn = self._turns[0]
        finished = [*self._beginning, {"role": "assistant", "content": turn}]
        last = self._tokenizer.render(finished, open_turn=False).partition(turn)[0]
        if last == before:
            return {}
        common = len(os.path.commonprefix([last, before]))
        now, later = _shown(last[common:]), _shown(before[common:])
        return {"last_turn": f"begins the last turn of a finished conversation with {now}, but others with {later}"}

    def _token_change(self) -> dict[str, str]:
        ids = self._tokenizer.prompt_ids(self._beginning)
        for turn, reply in zip(self._turns, self._replies, strict=True):
            ids += self._tokenizer.encode(turn) + self._tokenizer.reply_ids(reply)[0]
        if ids == self._tokenizer.prompt_ids(self._messages):
            return {}
        return {"tokens": "separates turns by plain text, so that tokens cross their borders"}


def _accepted_replies(tokenizer: TurnTokenizer, roles: Sequence[str]) -> Iterator[Messages]:
    """Yield one message of each role that the template accepts after a turn."""
    for role in roles:
        reply = [{"role": role, "content": "Go on: 3 + 3."}]
        try:
            tokenizer.reply_ids(reply)
        except ConfigError:
            continue
        yield reply


def _refuses(tokenizer: TurnTokenizer, messages: Messages) -> bool:
    try:
        tokenizer.render(messages)
    except ConfigError:
        return True
    return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...") if text else "nothing"


def well_formed(text: str) -> str:
    """Return the text with U+FFFD for lone surrogates."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def unused_marker(messages: Messages) -> str:
    """Return a short run of private-use characters that occurs in no message."""
    runs = [run for message in messages for value in message.values() for run in re.findall("\ue000\ue001*", value)]
    return "\ue000" + "\ue001" * max(map(len, runs), default=0)
