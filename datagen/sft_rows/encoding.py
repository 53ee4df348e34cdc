"""Build the token ids and loss labels of fine-tuning rows from the rollout's own ids and segments.

A row ends with the last id that the model wrote: what the system wrote after it is no part of the row. A trajectory
whose context was trimmed has several samples; each becomes a row of its own, with the prompt that the model saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from treadle.agent.dialects.base import RESULT, Dialect, Segment
from treadle.agent.token_ids import ORIGIN_SYSTEM
from treadle.agent.tools.schema import ToolSchema
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError
from treadle.datagen.sft_rows.messages import messages_of

NO_LOSS = -100
"""Label of a token without loss."""

Span = Sequence[int]
"""Start and end of a run of ids after the prompt."""


class IdColumns:
    """The samples of a batch of trajectories, read one by one without converting all of them to Python lists.

    Methods take the index of a trajectory in the batch and the index of one of its samples. Failed rollouts have none.
    """

    NAMES = ("samples",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        samples: pa.ListArray = batch.column("samples")
        self._places = samples.offsets.to_pylist()
        self._values: dict[str, np.ndarray] = {}
        self._offsets: dict[str, list[int]] = {}
        for name in ("prompt_ids", "training_prompt_ids", "ids", "origins"):
            column: pa.ListArray = samples.values.field(name)
            self._values[name] = column.values.to_numpy()
            self._offsets[name] = column.offsets.to_pylist()
        self._is_hinted = samples.values.field("training_prompt_ids").is_valid().to_pylist()

    def num_samples(self, row: int) -> int:
        """Return the number of samples of a trajectory."""
        return int(self._places[row + 1] - self._places[row])

    def _of(self, name: str, row: int, sample: int) -> np.ndarray:
        place, offsets = self._places[row] + sample, self._offsets[name]
        end = offsets[place + 1] if place < self._places[row + 1] else offsets[place]
        values: np.ndarray = self._values[name][offsets[place] : end]
        return values

    def _prompt(self, row: int, sample: int) -> np.ndarray:
        """Return the only prompt that may be trained on: the one without a hint."""
        place = self._places[row] + sample
        is_hinted = place < self._places[row + 1] and self._is_hinted[place]
        return self._of("training_prompt_ids" if is_hinted else "prompt_ids", row, sample)

    def num_prompt(self, row: int, sample: int = 0) -> int:
        """Return the number of tokens before the first turn, without a hint; 0 in text mode."""
        return len(self._prompt(row, sample))

    def prompt_digest(self, row: int) -> str:
        """Return the digest of the first prompt's ids without a hint, comparable with `Prompt.digest`."""
        return digest_of(self._prompt(row, 0))

    def carried(self, row: int, sample: int) -> list[int]:
        """Return the ids of earlier turns that a trim kept: this sample's prompt without the first sample's prompt.

        Raises ArtifactError if the former does not begin with the latter.
        """
        first, prompt = self._prompt(row, 0), self._prompt(row, sample)
        if not np.array_equal(prompt[: len(first)], first):
            raise ArtifactError("a later sample of a trajectory begins with another prompt; run the rollouts again")
        carried: list[int] = prompt[len(first) :].tolist()
        return carried

    def output(self, row: int, sample: int = 0) -> list[int]:
        """Return the ids after the prompt; empty in text mode."""
        ids: list[int] = self._of("ids", row, sample).tolist()
        return ids

    def origins(self, row: int, sample: int = 0) -> bytes:
        """Return the origin of each id after the prompt, one byte per id."""
        return self._of("origins", row, sample).tobytes()


def digest_of(ids: np.ndarray | Sequence[int]) -> str:
    """Return a digest of token ids, 32 hex digits."""
    return hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=16).hexdigest()


class Prompt(NamedTuple):
    """The messages before the first turn and their ids; without a tokenizer, `ids` is empty."""

    messages: Sequence[Mapping[str, str]]
    ids: list[int]
    digest: str

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, str]],
        tools: Sequence[ToolSchema],
        tokenizer: ChatTokenizer | None,
        dialect: Dialect,
    ) -> Prompt:
        """Return the prompt of an episode's first messages and tools; `dialect` is bound to the tokenizer."""
        if tokenizer is None:
            return cls(messages, [], digest_of([]))
        told, given = dialect.tool_prompt(messages, tools)
        ids = tokenizer.prompt_ids(told, given)
        return cls(messages, ids, digest_of(ids))


@dataclass(frozen=True, slots=True)
class Turns:
    """All that a row has after its prompt, up to the last id that the model wrote.

    Attributes:
        messages: The turns and the messages between them, as the column `messages` has them.
        ids: Token ids; empty in text mode.
        system: Spans of the ids that the system wrote: results, messages, and the chat template's control tokens.
        results: Spans of the ids that are tool results inside a turn.
        carried: Ids of earlier turns that a trim kept, between the prompt and `ids`; they have no loss.
        is_last: Whether the trajectory ends with this row; otherwise another row continues it.
    """

    messages: Sequence[Mapping[str, Any]]
    ids: Sequence[int]
    system: Sequence[Span]
    results: Sequence[Span]
    carried: Sequence[int] = ()
    is_last: bool = True

    @classmethod
    def of(cls, segments: Sequence[Segment], ids: Sequence[int], origins: bytes, dialect: Dialect) -> Turns:
        """Return the turns of a trajectory; `segments` are typed and index `ids`."""
        end = num_row_ids(origins)
        results = [(one.start, one.end) for one in segments if one.kind == RESULT and one.start < one.end <= end]
        return cls(messages_of(segments, origins, dialect), ids[:end], system_spans(origins[:end]), results)

    def after(self, carried: Sequence[int], text: str, *, is_last: bool) -> Turns:
        """Return these turns with the `carried` ids of earlier turns before them; `text` is the text of those ids."""
        messages = list(self.messages)
        if text:
            first = dict(messages[0])
            spans = [[start + len(text), end + len(text)] for start, end in first.get("results", ())]
            messages[0] = {
                **first,
                "content": text + first["content"],
                **({"results": spans} if spans else {}),
                "num_carried_chars": len(text),
            }
        return replace(self, messages=messages, carried=carried, is_last=is_last)


def num_row_ids(origins: bytes) -> int:
    """Return the number of ids after the prompt up to the last one that the model wrote."""
    return len(origins.rstrip(bytes([ORIGIN_SYSTEM])))


def system_spans(origins: bytes) -> list[tuple[int, int]]:
    """Return start and end of each run of ids that the system wrote."""
    system = np.frombuffer(origins, np.uint8) == ORIGIN_SYSTEM
    edges = np.flatnonzero(np.diff(np.concatenate(([False], system, [False])))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Encoder of rows for one tokenizer.

    Attributes:
        turn_end: Ids with which the chat template ends a turn; appended to rows whose last turn the model did not end.
        eos_ids: Ids at which generation stops.
        mask_results: Whether tool results have no loss.
    """

    turn_end: tuple[int, ...] = ()
    eos_ids: frozenset[int] = frozenset()
    mask_results: bool = True

    @classmethod
    def of(cls, tokenizer: ChatTokenizer | None, *, mask_results: bool) -> RowEncoder:
        """Return the encoder for a tokenizer; without one, rows have no ids."""
        if tokenizer is None:
            return cls(mask_results=mask_results)
        return cls(tokenizer.turn_end_ids, tokenizer.eos_ids, mask_results)

    def end_after(self, last: int | None) -> tuple[int, ...]:
        """Return the ids to append after the last one: none if the model itself ended its turn."""
        return () if last in self.eos_ids else self.turn_end

    def num_tokens(self, num_prompt: int, ids: Sequence[int], origins: bytes, *, is_last: bool = True) -> int:
        """Return the length of the row that ids after a prompt become; 0 in text mode."""
        if not len(ids):
            return 0
        num_ids = num_row_ids(origins)
        end = self.end_after(ids[num_ids - 1] if num_ids else None) if is_last else ()
        return num_prompt + num_ids + len(end)

    def num_tokens_of(self, prompt: Prompt, turns: Turns) -> int:
        """Return the length of a row with token ids."""
        return len(prompt.ids) + len(turns.ids) + len(self.end_after(turns.ids[-1] if turns.ids else None))

    def columns(self, prompt: Sequence[int], turns: Turns) -> dict[str, Any]:
        """Return the id columns of a row; empty ones in text mode.

        Every id that the model wrote has a label, the end of its turns included; messages, frames and the prompt have
        none, and tool results have one only without `mask_results`. Of an appended end of turn, the ids up to the first
        at which generation stops have a label. No end is appended to a row whose turn continues in another row.
        """
        if not turns.ids:
            names = ("num_tokens", "num_prompt_tokens", "num_result_tokens", "num_message_tokens", "num_target_tokens")
            return {"input_ids": [], "labels": [], **dict.fromkeys(names, 0)}
        prompt = [*prompt, *turns.carried]
        end = self.end_after(turns.ids[-1]) if turns.is_last else ()
        num_generated = next((index + 1 for index, token in enumerate(end) if token in self.eos_ids), 0)
        labels = list(turns.ids)
        for start, stop in turns.system:
            labels[start:stop] = [NO_LOSS] * (stop - start)
        if not self.mask_results:
            for start, stop in turns.results:
                labels[start:stop] = turns.ids[start:stop]
        labels = [NO_LOSS] * len(prompt) + labels
        labels += [*end[:num_generated], *[NO_LOSS] * (len(end) - num_generated)]
        num_results = sum(stop - start for start, stop in turns.results)
        num_system = sum(stop - start for start, stop in turns.system)
        return {
            "input_ids": [*prompt, *turns.ids, *end],
            "labels": labels,
            "num_tokens": len(labels),
            "num_prompt_tokens": len(prompt),
            "num_result_tokens": num_results,
            "num_message_tokens": num_system - num_results + len(end) - num_generated,
            "num_target_tokens": len(labels) - labels.count(NO_LOSS),
        }
