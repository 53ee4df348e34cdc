"""Compute the log-probabilities of a batch of trajectories with each group's prompt computed only once.

The trajectories of a group share their prompt. One packed row holds the prompt followed by all of them, and each
attends to the prompt and to itself. Values and gradients equal those of separate rows, without recomputing the prompt
or computing padding. On a CPU that work would be most of a training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from treadle.rl.engine.attention import packed

_LOGIT_ROWS = 1024
"""Number of positions whose logits are in memory at once."""


@dataclass(frozen=True, slots=True)
class _PackedGroup:
    """Positions in the packed row of a prompt and of the trajectories that share it."""

    prompt: slice
    places: torch.Tensor
    """Position of each token of each trajectory, (trajectories, longest); the padding of shorter ones is position 0."""
    is_token: torch.Tensor
    """(trajectories, longest), True for tokens, False for padding."""
    mask: torch.Tensor
    """(trajectories, 1, longest, prompt + longest), True if a token of a trajectory (third axis) attends to a token of
    the prompt or of the trajectory (fourth axis)."""


class SharedPrompts:
    """Layout of groups in sequence, each a prompt followed by its trajectories."""

    def __init__(self, groups: Sequence[_PackedGroup]) -> None:
        self._groups = groups

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention of one layer; see `treadle.rl.engine.attention.Layout`."""
        num_shared = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(num_shared, 0), value.repeat_interleave(num_shared, 0)
        outs = []
        for group in self._groups:
            at = group.prompt
            outs.append(
                functional.scaled_dot_product_attention(
                    query[None, :, at], key[None, :, at], value[None, :, at], is_causal=True, scale=scale
                )[0]
            )
            own = query[:, group.places].transpose(0, 1)
            out = functional.scaled_dot_product_attention(
                own, _joined(key, group), _joined(value, group), attn_mask=group.mask, scale=scale
            )
            outs.append(out.transpose(0, 1)[:, group.is_token])
        return torch.cat(outs, 1)


def _joined(states: torch.Tensor, group: _PackedGroup) -> torch.Tensor:
    """Return the prompt's states followed by each trajectory's own: (trajectories, heads, prompt + longest, size)."""
    prompt = states[None, :, group.prompt].expand(len(group.places), -1, -1, -1)
    return torch.cat([prompt, states[:, group.places].transpose(0, 1)], 2)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A padded batch as one packed row.

    Attributes:
        ids: Token ids of the row.
        positions: Position of each token in its trajectory.
        layout: Rule of which token attends to which.
        rows: For each scored token, the index of its trajectory in the batch.
        columns: For each scored token, its index in the completion.
        targets: For each scored token, its index in the packed row.
        sources: For each scored token, the index in the packed row of the token before it in the trajectory.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    layout: SharedPrompts
    rows: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    sources: torch.Tensor


def pack(ids: torch.Tensor, attended: torch.Tensor, num_completion: int, wanted: torch.Tensor | None) -> PackedBatch:
    """Pack a padded batch of TRL.

    Args:
        ids: (trajectories, prompt + completion), prompts padded on the left, completions on the right.
        attended: The same shape; 1 for tokens, 0 for padding.
        num_completion: Number of completion columns.
        wanted: (trajectories, completion): tokens to score; None for all.
    """
    start = ids.shape[1] - num_completion
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(ids)):
        prompt = ids[row, :start][attended[row, :start].bool()].tolist()
        by_prompt.setdefault(tuple(prompt), []).append(row)
    lengths = attended[:, start:].sum(1).tolist()
    packing = _Packing(ids.device)
    for prompt, members in by_prompt.items():
        packing.begin_group(prompt)
        for row in members:
            own = ids[row, start : start + lengths[row]]
            scored = torch.arange(len(own), device=ids.device)
            packing.add(row, own, scored if wanted is None else scored[wanted[row, : len(own)].bool()])
        packing.end_group()
    return packing.batch()


class _Packing:
    """Builder of a packed row."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._offset = 0
        self._groups: list[_PackedGroup] = []
        self._prompt = slice(0, 0)
        self._members: list[tuple[int, int]] = []
        self._parts: dict[str, list[torch.Tensor]] = {name: [] for name in PackedBatch.__slots__ if name != "layout"}

    def begin_group(self, prompt: Sequence[int]) -> None:
        self._prompt = slice(self._offset, self._offset + len(prompt))
        self._members = []
        self._put(ids=torch.tensor(prompt, device=self._device), positions=self._count(len(prompt)))
        self._offset += len(prompt)

    def add(self, row: int, ids: torch.Tensor, scored: torch.Tensor) -> None:
        """Add a trajectory to the group; `scored` holds indices into `ids`."""
        num_prompt = self._prompt.stop - self._prompt.start
        before = torch.where(scored == 0, self._prompt.stop - 1, self._offset + scored - 1)
        self._put(ids=ids, positions=self._count(len(ids)) + num_prompt)
        self._put(rows=torch.full_like(scored, row), columns=scored, targets=scored + self._offset, sources=before)
        self._members.append((self._offset, len(ids)))
        self._offset += len(ids)

    def end_group(self) -> None:
        longest = max(count for _, count in self._members)
        places = torch.zeros(len(self._members), longest, dtype=torch.long, device=self._device)
        for index, (begin, count) in enumerate(self._members):
            places[index, :count] = self._count(count) + begin
        counts = torch.tensor([count for _, count in self._members], device=self._device)
        self._groups.append(_group(self._prompt, places, counts))

    def batch(self) -> PackedBatch:
        joined = {name: torch.cat(parts) for name, parts in self._parts.items()}
        return PackedBatch(layout=SharedPrompts(self._groups), **joined)

    def _put(self, **parts: torch.Tensor) -> None:
        for name, part in parts.items():
            self._parts[name].append(part)

    def _count(self, number: int) -> torch.Tensor:
        return torch.arange(number, device=self._device)


def _group(prompt: slice, places: torch.Tensor, counts: torch.Tensor) -> _PackedGroup:
    longest, device = places.shape[1], places.device
    columns = torch.arange(longest, device=device)
    is_token = columns[None] < counts[:, None]
    own = (columns[None] <= columns[:, None])[None] & is_token[:, None]
    # Padding attends to itself, because a softmax over no token is nan.
    own = own | torch.eye(longest, dtype=torch.bool, device=device)[None]
    ahead = torch.ones(len(places), longest, prompt.stop - prompt.start, dtype=torch.bool, device=device)
    return _PackedGroup(prompt, places, is_token, torch.cat([ahead, own], 2)[:, None])


def log_probs(
    model: Any, batch: PackedBatch, shape: torch.Size, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities (with gradients) and entropies of the scored tokens, in `shape`; 0 at all other tokens.

    `model` is the causal language model without wrappers; `shape` is (trajectories, completion).
    """
    backbone = getattr(model, model.base_model_prefix)
    with packed(model):
        hidden = backbone(
            input_ids=batch.ids[None], position_ids=batch.positions[None], use_cache=False, layout=batch.layout
        ).last_hidden_state[0]
    labels = batch.ids[batch.targets]
    head = model.get_output_embeddings()
    scores, entropies = [], []
    for start in range(0, len(labels), _LOGIT_ROWS):
        part = slice(start, start + _LOGIT_ROWS)
        arguments = (head, hidden[batch.sources[part]], labels[part], temperature)
        if len(labels) > _LOGIT_ROWS and torch.is_grad_enabled():
            score, entropy = checkpoint(_score, *arguments, use_reentrant=False)
        else:
            score, entropy = _score(*arguments)
        scores.append(score)
        entropies.append(entropy)
    where = (batch.rows, batch.columns)
    empty = torch.zeros(shape, device=hidden.device)
    if not scores:
        return empty + 0.0 * hidden.sum(), empty
    return empty.index_put(where, torch.cat(scores)), empty.index_put(where, torch.cat(entropies))


def _score(
    head: Any, hidden: torch.Tensor, labels: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each label and the entropy at its position."""
    logits = head(hidden).float() / temperature
    score = -functional.cross_entropy(logits, labels, reduction="none")
    with torch.no_grad():
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    return score, entropy
