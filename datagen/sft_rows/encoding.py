"""Build the token ids and loss labels of fine-tuning rows from the rollout's own ids."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from treadle.agent.token_ids import ORIGIN_SYSTEM
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError

NO_LOSS = -100
"""Label of a token without loss."""

Span = Sequence[int]
"""Start and end of a tool result's ids in the assistant turn."""


class IdColumns:
    """The samples of a batch of trajectories, read row by row without converting all of them to Python lists.

    Raises ArtifactError for a trajectory of several samples. A failed rollout has none.
    """

    NAMES = ("samples",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        samples: pa.ListArray = batch.column("samples")
        self._places = samples.offsets.to_pylist()
        if any(after - before > 1 for before, after in itertools.pairwise(self._places)):
            raise ArtifactError("a trajectory consists of several token sequences, which sft_rows does not support")
        self._values: dict[str, np.ndarray] = {}
        self._offsets: dict[str, list[int]] = {}
        for name in ("prompt_ids", "ids", "origins"):
            column: pa.ListArray = samples.values.field(name)
            self._values[name] = column.values.to_numpy()
            self._offsets[name] = column.offsets.to_pylist()

    def _ends(self, name: str, row: int) -> tuple[int, int]:
        offsets = self._offsets[name]
        return offsets[self._places[row]], offsets[self._places[row + 1]]

    def _of(self, name: str, row: int) -> np.ndarray:
        start, end = self._ends(name, row)
        values: np.ndarray = self._values[name][start:end]
        return values

    def num_prompt(self, row: int) -> int:
        """Return the number of tokens before the first turn; 0 in text mode."""
        start, end = self._ends("prompt_ids", row)
        return end - start

    def num_output(self, row: int) -> int:
        """Return the number of tokens after the prompt; 0 in text mode."""
        start, end = self._ends("ids", row)
        return end - start

    def prompt_digest(self, row: int) -> str:
        """Return the digest of the prompt's ids, comparable with `Prompt.digest`."""
        return digest_of(self._of("prompt_ids", row))

    def output(self, row: int) -> list[int]:
        """Return the ids of the assistant turn."""
        ids: list[int] = self._of("ids", row).tolist()
        return ids

    def origins(self, row: int) -> bytes:
        """Return the origin of each id of the assistant turn, one byte per id."""
        return self._of("origins", row).tobytes()


def digest_of(ids: np.ndarray | Sequence[int]) -> str:
    """Return a digest of token ids, 32 hex digits."""
    return hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=16).hexdigest()


class Prompt(NamedTuple):
    """The prompt before the assistant turn; without a tokenizer, `ids` is empty."""

    system: str
    user: str
    ids: list[int]
    digest: str

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, str]], tokenizer: ChatTokenizer | None) -> Prompt:
        """Return the prompt of an environment's opening messages."""
        ids = tokenizer.prompt_ids(messages) if tokenizer else []
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        return cls(system, messages[-1]["content"], ids, digest_of(ids))


def result_spans(origins: bytes) -> list[tuple[int, int]]:
    """Return start and end of each tool result's ids; adjacent results are one span."""
    system = np.frombuffer(origins, np.uint8) == ORIGIN_SYSTEM
    edges = np.flatnonzero(np.diff(np.concatenate(([False], system, [False])))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def id_columns(
    prompt: Sequence[int], output: Sequence[int], results: Sequence[Span], turn_end: Sequence[int], num_generated: int
) -> dict[str, Any]:
    """Return the id columns of a row; `results` are the spans without loss.

    The loss covers only the first `num_generated` ids of the turn's end, because generation stops there.
    """
    labels = list(output)
    for start, stop in results:
        labels[start:stop] = [NO_LOSS] * (stop - start)
    labels = (
        [NO_LOSS] * len(prompt) + labels + [*turn_end[:num_generated], *[NO_LOSS] * (len(turn_end) - num_generated)]
    )
    return {
        "input_ids": [*prompt, *output, *turn_end],
        "labels": labels,
        "num_tokens": len(labels),
        "num_prompt_tokens": len(prompt),
        "num_target_tokens": len(labels) - labels.count(NO_LOSS),
    }


def num_generated(turn_end: Sequence[int], eos_ids: frozenset[int]) -> int:
    """Return how many ids of a turn's end the model must generate: those up to the first end-of-sequence id."""
    return next((index + 1 for index, token in enumerate(turn_end) if token in eos_ids), 0)
