"""Compute attention over packed sequences: many sequences in one row of tokens, without padding.

All other parts of a transformer work on each token separately, so replacing the attention is enough to pack a
transformers model. A `Layout`, passed through the model as the argument `layout`, defines which tokens attend to which.
Only models in which every layer attends to all earlier tokens are supported.
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
    """Rule of which token attends to which."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention of one layer; `query`, `key`, `value` and the result are (heads, tokens, size)."""
        ...


def is_supported(config: Any) -> bool:
    """Return whether a model of this configuration can run on packed sequences."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    softcap = getattr(config, "attn_logit_softcapping", None)
    window = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    return config.model_type in _MODELS and set(kinds) == {"full_attention"} and not softcap and not window


_MODELS = frozenset({"llama", "qwen2", "qwen3", "mistral", "olmo2", "smollm3"})
"""Model types whose attention depends only on keys, values and positions."""


def require_supported(config: Any) -> None:
    """Raise ConfigError for a model that cannot generate rollouts on a CPU."""
    if not is_supported(config):
        raise ConfigError(
            f"training on a CPU supports the model types {', '.join(sorted(_MODELS))} with full attention in every "
            f"layer, but rl.start is another ({config.model_type}); start from a supported model, or use a GPU"
        )


@contextlib.contextmanager
def packed(model: Any) -> Iterator[None]:
    """Use the attention of a `Layout` inside the block; the model's calls then need the argument `layout`."""
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
    """Compute the attention of one layer; transformers calls this with `query` of (1, heads, tokens, size)."""
    assert layout is not None, "a packed model is called with a layout"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = layout.attend(module.layer_idx, query[0], key[0], value[0], scale)
    return out.transpose(0, 1).unsqueeze(0).contiguous(), None


AttentionInterface.register(_NAME, _attend)


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return the attention with fewer key heads than query heads, without copying any.

    Args:
        query: (rows, heads, tokens, size).
        key, value: (rows, key heads, all tokens, size).
        mask: (rows or 1, tokens, all tokens), added to the scores; None for no mask.

    Returns:
        (rows, heads, tokens, size).
    """
    rows, heads, tokens, size = query.shape
    num_shared = heads // key.shape[1]
    # Query heads that share a key head become additional queries of that head.
    folded = query.reshape(rows, key.shape[1], num_shared * tokens, size)
    scores = torch.matmul(folded * scale, key.transpose(2, 3))
    if mask is not None:
        scores = scores.view(rows, key.shape[1], num_shared, tokens, -1) + mask[:, None, None]
        scores = scores.view(rows, key.shape[1], num_shared * tokens, -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(rows, heads, tokens, size)
