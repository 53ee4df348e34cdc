"""Token ids of fine-tuning rows: those that the rollout met and wrote, with the labels of its loss."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from treadle.agent.transcript import ORIGIN_SYSTEM
from treadle.core.chat import ChatTokenizer

NO_LOSS = -100
"""Label of a token that is no target."""

Span = Sequence[int]
"""Where a result's ids begin and end in the assistant turn."""


class IdColumns:
    """The id columns of a batch of trajectories, row by row, without turning all of them into Python lists."""

    NAMES = ("prompt_ids", "output_ids", "token_origin")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._values: dict[str, np.ndarray] = {}
        self._offsets: dict[str, list[int]] = {}
        for name in self.NAMES:
            column: pa.ListArray = batch.column(name)
            self._values[name] = column.values.to_numpy()
            self._offsets[name] = column.offsets.to_pylist()

    def _of(self, name: str, row: int) -> np.ndarray:
        offsets = self._offsets[name]
        values: np.ndarray = self._values[name][offsets[row] : offsets[row + 1]]
        return values

    def num_prompt(self, row: int) -> int:
        """Tokens before the assistant turn; 0 in text mode."""
        return self._offsets["prompt_ids"][row + 1] - self._offsets["prompt_ids"][row]

    def num_output(self, row: int) -> int:
        """Tokens of the assistant turn; 0 in text mode."""
        return self._offsets["output_ids"][row + 1] - self._offsets["output_ids"][row]

    def prompt_digest(self, row: int) -> str:
        """Equal for equal prompts; see `Prompt`."""
        return digest_of(self._of("prompt_ids", row))

    def output(self, row: int) -> list[int]:
        """Ids of the assistant turn."""
        ids: list[int] = self._of("output_ids", row).tolist()
        return ids

    def origins(self, row: int) -> bytes:
        """Origin of each of them, a byte per id."""
        return self._of("token_origin", row).tobytes()


def digest_of(ids: np.ndarray | Sequence[int]) -> str:
    """32 hex digits that stand for token ids."""
    return hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=16).hexdigest()


class Prompt(NamedTuple):
    """What stands before the assistant turn; without a tokenizer there are no ids."""

    system: str
    user: str
    ids: list[int]
    digest: str

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, str]], tokenizer: ChatTokenizer | None) -> Prompt:
        """The prompt of the messages that an environment begins with."""
        ids = tokenizer.prompt_ids(messages) if tokenizer else []
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        return cls(system, messages[-1]["content"], ids, digest_of(ids))


def result_spans(origins: bytes) -> list[tuple[int, int]]:
    """Where the ids of results begin and end; results that follow one another directly are one span."""
    system = np.frombuffer(origins, np.uint8) == ORIGIN_SYSTEM
    edges = np.flatnonzero(np.diff(np.concatenate(([False], system, [False])))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def id_columns(
    prompt: Sequence[int], output: Sequence[int], results: Sequence[Span], turn_end: Sequence[int], num_said: int
) -> dict[str, Any]:
    """The columns of a row that are made of ids; `results` are the spans without loss.

    Of the turn's end the model learns the first `num_said` ids: what follows them nobody asks it for.
    """
    labels = list(output)
    for start, stop in results:
        labels[start:stop] = [NO_LOSS] * (stop - start)
    labels = [NO_LOSS] * len(prompt) + labels + [*turn_end[:num_said], *[NO_LOSS] * (len(turn_end) - num_said)]
    return {
        "input_ids": [*prompt, *output, *turn_end],
        "labels": labels,
        "num_tokens": len(labels),
        "num_prompt_tokens": len(prompt),
        "num_target_tokens": len(labels) - labels.count(NO_LOSS),
    }


def num_said(turn_end: Sequence[int], eos_ids: frozenset[int]) -> int:
    """How many ids of a turn's end the model must write itself: those up to the one at which generation stops."""
    return next((index + 1 for index, token in enumerate(turn_end) if token in eos_ids), 0)
