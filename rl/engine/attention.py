"""Attention over packed sequences: many sequences side by side in one row of tokens, without padding.

All other parts of a transformer work at each token alone, so that a model of transformers becomes a packed one by
replacing its attention. What tokens attend to is told by a `Layout`, handed through the model as the argument `layout`.
Only models whose every layer attends to all tokens before it fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from treadle.core.errors import ConfigError

_NAME = "treadle_packed"


class Layout(Protocol):
    """Which token attends to which."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention of one layer; `query`, `key` and `value` are (heads, tokens, size), the answer likewise."""
        ...


def is_supported(config: Any) -> bool:
    """Whether a model of this configuration can work on packed sequences."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    softcap = getattr(config, "attn_logit_softcapping", None)
    window = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    return config.model_type in _MODELS and set(kinds) == {"full_attention"} and not softcap and not window


_MODELS = frozenset({"llama", "qwen2", "qwen3", "mistral", "olmo2", "smollm3"})
"""Those whose attention is nothing but that of their keys, values and positions."""


def require_supported(config: Any) -> None:
    """Raise ConfigError for a model that cannot make its rollouts on a CPU."""
    if not is_supported(config):
        raise ConfigError(
            f"on a CPU a policy must be of the types {', '.join(sorted(_MODELS))} and attend to all earlier tokens in "
            f"every layer, and rl.start is another ({config.model_type}); begin with such a one, or take a GPU"
        )


@contextlib.contextmanager
def packed(model: Any) -> Iterator[None]:
    """Let a model attend as `layout` says while the block runs; its calls then need that argument."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer; `query` is (1, heads, tokens, size)."""
    assert layout is not None, "a packed model is called with a layout"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = layout.attend(module.layer_idx, query[0], key[0], value[0], scale)
    return out.transpose(0, 1).unsqueeze(0).contiguous(), None


AttentionInterface.register(_NAME, _attend)


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attention with fewer heads of keys than of queries, without copying any.

    Args:
        query: (rows, heads, tokens, size).
        key, value: (rows, key heads, all tokens, size).
        mask: (rows or 1, tokens, all tokens), what is added to the scores; None for none.

    Returns:
        (rows, heads, tokens, size).
    """
    rows, heads, tokens, size = query.shape
    num_shared = heads // key.shape[1]
    # The queries that share a head of keys become more queries of it.
    folded = query.reshape(rows, key.shape[1], num_shared * tokens, size)
    scores = torch.matmul(folded * scale, key.transpose(2, 3))
    if mask is not None:
        scores = scores.view(rows, key.shape[1], num_shared, tokens, -1) + mask[:, None, None]
        scores = scores.view(rows, key.shape[1], num_shared * tokens, -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(rows, heads, tokens, size)
