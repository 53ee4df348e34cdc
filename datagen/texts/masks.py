"""Mask the observations of a trajectory that is one whole text: characters of their spans, mapped to token ids.

Spans are found in the text and mapped by the characters that each token ends at, never by looking for the ids of
markers: these depend on the text around them. Documented in docs/behaviour/sft_rows.md.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from treadle.datagen.texts.spans import OBSERVATION, TextSpan, tag_spans


class OffsetTokenizer(Protocol):
    """Interface of a tokenizer that maps its tokens to the characters they represent; `ChatTokenizer` implements it."""

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of plain text, and for each id the number of characters up to its end."""
        ...


@dataclass(frozen=True, slots=True)
class MaskedText:
    """Token ids of a text and which of them have no loss.

    Attributes:
        ids: Token ids.
        masked: Start and end of each run of masked ids, ascending.
    """

    ids: list[int]
    masked: list[tuple[int, int]]

    def cut(self, num_ids: int) -> MaskedText:
        """Return the first `num_ids` ids; a masked run that crosses the cut stays masked up to it."""
        masked = [(start, min(end, num_ids)) for start, end in self.masked if start < num_ids]
        return MaskedText(self.ids[:num_ids], masked)


def mask_text(text: str, tokenizer: OffsetTokenizer, word: str = OBSERVATION) -> MaskedText:
    """Encode a text as a whole and mask every token that overlaps a span of the tag.

    If such a token also holds other text than white space (`><` of two tags without a space between them), the text
    is encoded in two parts at this place, as a rollout does, so that all text of the model has a loss.
    """
    spans = tag_spans(text, word)
    ids, ends = tokenizer.encode_with_ends(text)
    cuts = _straddled(text, spans, ends)
    if cuts:
        ids, ends = _encode_parts(text, cuts, tokenizer)
        if _straddled(text, spans, ends):  # a cut may change the tokens up to the next border
            ids, ends = _encode_parts(text, sorted({place for span in spans for place in span}), tokenizer)
    return MaskedText(ids, _masked_runs(spans, ends))


def _encode_parts(text: str, cuts: Sequence[int], tokenizer: OffsetTokenizer) -> tuple[list[int], list[int]]:
    """Return ids and ends of a text whose parts between the cuts are encoded on their own."""
    ids: list[int] = []
    ends: list[int] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        part_ids, part_ends = tokenizer.encode_with_ends(text[start:end])
        ids += part_ids
        ends += [start + place for place in part_ends]
    return ids, ends


def _straddled(text: str, spans: Sequence[TextSpan], ends: Sequence[int]) -> list[int]:
    """Return the borders of spans inside tokens that also hold other text than white space."""
    found = []
    for start, end in spans:
        index = bisect.bisect_right(ends, start)
        before = ends[index - 1] if index else 0
        if before < start and text[before:start].strip():
            found.append(start)
        index = bisect.bisect_left(ends, end)
        if index < len(ends) and ends[index] > end and text[end : ends[index]].strip():
            found.append(end)
    return sorted(set(found))


def _masked_runs(spans: Sequence[TextSpan], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of the runs of tokens that overlap a span; adjacent ones are one run."""
    runs: list[tuple[int, int]] = []
    for start, end in spans:
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(ends, end)
        last = min(last + 1, len(ends))
        if runs and first <= runs[-1][1]:
            first, last = runs.pop()[0], last
        if first < last:
            runs.append((first, last))
    return runs
