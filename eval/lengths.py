"""How much an agent wrote itself: tokens and characters of a trajectory without results of tools.

Documented in docs/behaviour/scores.md; the length of reasoning is that of ET-Agent (arXiv 2601.06860), except that ids
which were sampled are counted as they are, and that no token is added that begins a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from treadle.core.answers.extraction import RESULT_KIND
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError


class Encoder(Protocol):
    """The tokenizer of the evaluated model; `treadle.core.chat.ChatTokenizer` fits."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added."""
        ...


def load_tokenizer(folder: Path | None, digest: str) -> ChatTokenizer | None:
    """The evaluated model's, None where none is configured; `digest`: what it must have, empty for any.

    Raises ConfigError for one that cannot be loaded, or that is another one.
    """
    if folder is None:
        return None
    tokenizer = ChatTokenizer.load(folder)
    if digest not in ("", tokenizer.digest):
        raise ConfigError(f"the tokenizer in {folder} is not the one that this run was made with; put that one back")
    return tokenizer


def own_text(segments: Iterable[Mapping[str, Any]]) -> str:
    """What the agent wrote; results are left out with their markers, also one that ends the trajectory."""
    return "".join(segment["text"] for segment in segments if segment["kind"] != RESULT_KIND)


def own_ids(token_origin: pa.ListArray) -> list[int]:
    """Per rollout of a batch: number of its ids that no tool wrote (origin 1 or 2); 0 without ids."""
    import numpy as np

    lengths = token_origin.value_lengths().to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    own = np.concatenate(([0], np.cumsum(token_origin.flatten().to_numpy(zero_copy_only=False) != 0)))
    counts: list[int] = (own[starts[1:]] - own[starts[:-1]]).tolist()
    return counts


def reasoning_tokens(row: Mapping[str, Any], text: str, encoder: Encoder | None) -> int | None:
    """L of a rollout, in tokens of the evaluated model: its own ids, else `text` (see `own_text`) encoded anew.

    `row` has `num_own_ids` (see `own_ids`). None for a rollout in text mode where the model has no tokenizer.
    """
    if row["num_own_ids"] or row["tokenizer_digest"]:
        return int(row["num_own_ids"])
    return None if encoder is None else len(encoder.encode(text))
