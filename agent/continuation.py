"""Join the given beginning of a model's text with the reply that continues it, for services that only take messages.

A completion model continues the beginning itself. A chat service reads it in a message, so its reply may repeat the
beginning, open the thought again, or leave out the space between two words.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence

from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.tags import TagDialect

_BEGUN = """The beginning of your reply is already written, between the lines of dashes. What you write is appended to \
it: write only what follows, from the next word on, and do not repeat the beginning.
-----
{begun}
-----"""
_BORDER = re.compile(r"\n|>|[:.!?](?=\s)")
"""Pattern of the ends of lines, markers, labels and sentences; repeated text begins or ends at one of these borders."""
_SHORTEST_REPETITION = 12
"""Least number of characters of repeated text; shorter texts may be equal by chance."""
_MOST_PARTS = 64
"""Number of last borders of a beginning at which repeated text may begin; the limit keeps the time linear."""
_THINK = "think"


def with_beginning(messages: Sequence[Mapping[str, str]], begun: str) -> list[Mapping[str, str]]:
    """Return the messages with the given beginning of the reply, `begun`, added to the text of the last message."""
    *others, last = messages
    return [*others, {**last, "content": f"{last['content']}\n\n{_BEGUN.format(begun=begun)}"}]


def split_beginning(content: str) -> tuple[str, str]:
    """Undo `with_beginning`: return a message's content without the beginning, and the beginning; empty without one."""
    head, _, end = _BEGUN.partition("{begun}")
    before, found, rest = content.rpartition(f"\n\n{head}")
    return (before, rest.removesuffix(end)) if found and rest.endswith(end) else (content, "")


def without_repetition(begun: str, reply: str) -> str:
    """Return a reply without the text at its start that it copies from `begun`, the beginning that it should continue.

    A reply may copy the whole beginning, or its end from a line, marker, label or sentence on. It may also copy only
    the first lines, markers, labels or sentences, and then differ from the beginning. Copied text of fewer than 12
    characters stays, unless it is the whole beginning.
    """
    said, whole = reply.lstrip(), begun.strip()
    if not whole:
        return reply
    if said.startswith(whole):
        return said[len(whole) :]
    for border in list(_BORDER.finditer(begun))[-_MOST_PARTS:]:
        end = begun[border.end() :].strip()
        if len(end) < _SHORTEST_REPETITION:
            break
        if said.startswith(end):
            return said[len(end) :]
    common = os.path.commonprefix([whole, said])
    ends = [border.end() for border in _BORDER.finditer(common)]
    if ends and ends[-1] >= _SHORTEST_REPETITION:
        return said[ends[-1] :]
    return reply


def joined(begun: str, rest: str) -> str:
    """Return `rest`, after a space if it begins with a word and `begun` ends with a word or a punctuation mark."""
    is_word = begun[-1:].isalnum() or begun[-1:] in tuple(".,:;!?)\"'")
    return f" {rest}" if is_word and rest[:1].isalnum() else rest


def continued_turn(begun: str, reply: str, reasoning: str, dialect: Dialect) -> str:
    """Return the text to append to `begun`, the given beginning of a model's turn, from the reply that continues it.

    Text that the reply copies from the beginning is removed. If the beginning ends in an open thought, a marker with
    which the reply opens it again is removed, and the thought is closed before a call or answer. If the reply then
    begins with a call or answer, reasoning that the service returned outside the text becomes the rest of the thought.
    """
    if not isinstance(dialect, TagDialect) or not _is_open_thought(begun, dialect):
        return joined_reply(begun, reply)
    think = dialect.by_name[_THINK]
    rest = without_repetition(begun, reply)
    if reasoning and (first := dialect.markers.match(rest.lstrip())) and dialect.by_word[first[2]].stop:
        rest = dialect.markers.sub("", reasoning).strip() + rest.lstrip()
    if rest.lstrip().startswith(think.opening):
        body = begun[begun.rindex(think.opening) + len(think.opening) :]
        rest = without_repetition(body, rest.lstrip().removeprefix(think.opening))
    action = next((found for found in dialect.markers.finditer(rest) if dialect.by_word[found[2]].stop), None)
    if action is not None and not action[1] and think.closing not in rest[: action.start()]:
        rest = rest[: action.start()].rstrip() + think.closing + rest[action.start() :]
    return joined(begun, rest)


def joined_reply(begun: str, reply: str) -> str:
    """Return the text to append to `begun`: the reply without copied text; if it copies nothing, joined by `joined`."""
    rest = without_repetition(begun, reply)
    return joined(begun, rest) if rest is reply else rest


def _is_open_thought(text: str, dialect: TagDialect) -> bool:
    pieces = dialect.segments(text)
    if not pieces or pieces[-1].kind != _THINK:
        return False
    return not pieces[-1].text.endswith(dialect.by_name[_THINK].closing)
