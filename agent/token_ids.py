"""Define the origin of token ids and what a tokenizer must do for rollouts; cut ids to a part of their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

ORIGIN_SYSTEM, ORIGIN_SAMPLED, ORIGIN_REENCODED = 0, 1, 2
"""Origin of an id: system text (a result, a message, a frame), the model, or model text that was encoded here (cut
inside a token, or inserted)."""


class Codec(Protocol):
    """Interface of a tokenizer; `treadle.core.chat.ChatTokenizer` implements it."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        ...

    def count_within(self, ids: Sequence[int], text: str) -> int:
        """Return the largest number of leading ids whose decoded text is a prefix of `text`."""
        ...

    def counts_before(self, ids: Sequence[int], text: str, positions: Sequence[int]) -> list[int]:
        """Return the number of ids before each of some ascending positions in `text`, which is the text of `ids`.

        A token across a position counts as before it.
        """
        ...

    def reply_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], int]:
        """Return the ids between two assistant turns, and how many ids at their beginning end the earlier turn."""
        ...


def keep_prefix(codec: Codec, ids: list[int], origins: list[int], text: str) -> tuple[list[int], list[int], int]:
    """Shorten ids to those of `text`, which is a prefix of their decoded text.

    Returns ids, origins and the number of ids dropped. Ids that lie wholly within the text stay unchanged; the rest of
    the text, which ends inside a token, is encoded again.
    """
    count = codec.count_within(ids, text)
    tail = text[len(codec.decode(ids[:count])) :]
    again = codec.encode(tail) if tail else []
    # A token of which a part is kept does not count as dropped.
    dropped = len(ids) - count - (1 if tail else 0)
    return ids[:count] + again, origins[:count] + [ORIGIN_REENCODED] * len(again), max(dropped, 0)
