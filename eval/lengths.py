"""Measure how much text the agent itself wrote: tokens and characters of a trajectory without tool results.

Documented in docs/behaviour/scores.md. Reasoning length follows ET-Agent (arXiv 2601.06860), except that sampled ids
are counted directly and no beginning-of-text token is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from treadle.core.answers.extraction import SYSTEM_KINDS
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError

_MAX_TURN_CHARS = 1_000


def load_tokenizer(folder: Path | None, digest: str) -> ChatTokenizer | None:
    """Load the evaluated model's tokenizer, or return None if no tokenizer is configured.

    `digest` is the digest it must have; empty accepts any. Raise ConfigError if it cannot be loaded or does not match.
    """
    if folder is None:
        return None
    tokenizer = ChatTokenizer.load(folder)
    if digest not in ("", tokenizer.digest):
        raise ConfigError(
            f"the tokenizer in {folder} differs from the one that this run was created with; restore that one"
        )
    return tokenizer


def agent_text(segments: Iterable[Mapping[str, Any]]) -> str:
    """Return the text that the agent wrote: all but tool results, messages, and the template's control tokens."""
    return "".join(segment["text"] for segment in segments if segment["kind"] not in SYSTEM_KINDS)


def last_turn(segments: Sequence[Mapping[str, Any]]) -> str:
    """Return the beginning of the last turn, which serves as the prediction if whole rollouts are scored."""
    turns = [segment["text"] for segment in segments if segment["kind"] not in SYSTEM_KINDS]
    return turns[-1].strip()[:_MAX_TURN_CHARS] if turns else ""


def count_agent_ids(samples: pa.ListArray) -> list[int]:
    """Return for each rollout of a batch the number of token ids of text that the agent wrote; 0 without ids.

    These are the ids whose origin is not 0: sampled ones, and those of its text that was encoded again.

    `samples` is the column `samples` of `rollouts`.
    """
    import numpy as np

    origins = samples.flatten().field("origins")
    own = np.concatenate(([0], np.cumsum(origins.flatten().to_numpy(zero_copy_only=False) != 0)))
    ids_before = np.concatenate(([0], np.cumsum(origins.value_lengths().to_numpy(zero_copy_only=False))))
    samples_before = np.concatenate(([0], np.cumsum(samples.value_lengths().to_numpy(zero_copy_only=False))))
    ends = own[ids_before[samples_before]]
    counts: list[int] = (ends[1:] - ends[:-1]).tolist()
    return counts


def reasoning_tokens(row: Mapping[str, Any], text: str, encoder: ChatTokenizer | None) -> int | None:
    """Return L, the number of tokens that the agent wrote, by the evaluated model's tokenizer.

    For a rollout with token ids it is `num_agent_ids` of `row` (see `count_agent_ids`), which may be 0; for a text-mode
    rollout it is the number of tokens of `text` (see `agent_text`), or None if the model has no tokenizer.
    """
    if row["num_agent_ids"] or row["tokenizer_digest"]:
        return int(row["num_agent_ids"])
    return None if encoder is None else len(encoder.encode(text))
