"""Run BERT encoders (MiniLM, e5, bge, contriever) in numpy: needs only a CPU and pip packages, no torch.

Texts with the same number of tokens are processed together, so there is no padding and no masking.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treadle.core.errors import ConfigError
from treadle.retriever.config import EncoderSettings
from treadle.retriever.dense.encoder_models import EncoderModel
from treadle.retriever.dense.encoders import Encoder, pool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

_TOKENS_AT_ONCE: Final = 4_096
"""Maximum number of tokens per pass, which bounds its memory: BERT-base needs about 200 MB."""
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: the error function to 1.5e-7.
_ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P: Final = 0.3275911


class BertEncoder(Encoder):
    """A BERT model with pooling over its last layer, in float32. Memory: the weights and one pass."""

    def __init__(self, model: EncoderModel, settings: EncoderSettings) -> None:
        """Load the model; raise ConfigError if the files are not a BERT model in float32, float16 or bfloat16."""
        from tokenizers import Tokenizer

        activation = model.config.get("hidden_act", "gelu")
        if activation != "gelu" or model.config.get("position_embedding_type", "absolute") != "absolute":
            raise ConfigError(
                f"encoder model {model.name} is an unsupported kind of BERT; install torch and transformers"
            )
        super().__init__(int(model.config["hidden_size"]), model.identity(settings))
        self._weights = _Weights(model.folder / "model.safetensors")
        self._heads = int(model.config["num_attention_heads"])
        self._layers = [self._layer(number) for number in range(int(model.config["num_hidden_layers"]))]
        self._epsilon = float(model.config.get("layer_norm_eps", 1e-12))
        self._pooling = model.pooling
        longest = int(model.config["max_position_embeddings"])
        self._max_tokens = [min(settings.passage_max_tokens, longest), min(settings.query_max_tokens, longest)]
        self._tokenizers = []
        for max_tokens in self._max_tokens:
            tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.enable_truncation(max_tokens)
            self._tokenizers.append(tokenizer)

    def _layer(self, number: int) -> dict[str, Any]:
        import numpy as np

        w, prefix = self._weights, f"encoder.layer.{number}."
        own = [f"{prefix}attention.self.{part}" for part in ("query", "key", "value")]
        names = {
            "attended": f"{prefix}attention.output.dense",
            "attended_norm": f"{prefix}attention.output.LayerNorm",
            "wide": f"{prefix}intermediate.dense",
            "narrow": f"{prefix}output.dense",
            "narrow_norm": f"{prefix}output.LayerNorm",
        }
        layer: dict[str, Any] = {key: (w[f"{name}.weight"], w[f"{name}.bias"]) for key, name in names.items()}
        weight = np.concatenate([w[f"{name}.weight"] for name in own])
        layer["own"] = (weight, np.concatenate([w[f"{name}.bias"] for name in own]))
        return layer

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Array:
        import numpy as np

        tokens = [encoding.ids for encoding in self._tokenizers[is_query].encode_batch(list(texts))]
        vectors = np.zeros((len(tokens), self.dimension), dtype=np.float32)
        by_length = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        for length, group in groupby(by_length, key=lambda place: len(tokens[place])):
            same_length = list(group)
            most = max(1, _TOKENS_AT_ONCE // length)
            for start in range(0, len(same_length), most):
                places = same_length[start : start + most]
                hidden = self._hidden(np.array([tokens[place] for place in places]))
                vectors[places] = pool(hidden, np.ones(hidden.shape[:2], dtype=np.float32), self._pooling)
        return vectors

    def _hidden(self, ids: Any) -> Array:
        """Return the last layer's output, shape (texts, tokens, width), for token ids of shape (texts, tokens)."""
        count, length = ids.shape
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:length]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(x, (w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"]))
        for layer in self._layers:
            x = self._norm(
                x + _linear(self._attend(_linear(x, layer["own"])), layer["attended"]), layer["attended_norm"]
            )
            x = self._norm(x + _linear(_gelu(_linear(x, layer["wide"])), layer["narrow"]), layer["narrow_norm"])
        return x.reshape(count, length, self.dimension)

    def _attend(self, projected: Array) -> Array:
        import numpy as np

        count, length, _ = projected.shape
        parts = projected.reshape(count, length, 3, self._heads, -1).transpose(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        scores = (query @ key.transpose(0, 1, 3, 2)) * np.float32(1.0 / math.sqrt(query.shape[-1]))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Array = (scores @ value).transpose(0, 2, 1, 3).reshape(count, length, -1)
        return mixed

    def _norm(self, x: Array, parameters: tuple[Array, Array]) -> Array:
        import numpy as np

        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.einsum("...i,...i->...", centred, centred)[..., None] / np.float32(x.shape[-1])
        scaled: Array = centred / np.sqrt(variance + np.float32(self._epsilon)) * parameters[0] + parameters[1]
        return scaled


def _linear(x: Array, parameters: tuple[Array, Array]) -> Array:
    weight, bias = parameters
    flat: Array = x.reshape(-1, x.shape[-1]) @ weight.T + bias
    return flat.reshape(*x.shape[:-1], -1)


def _gelu(x: Array) -> Array:
    """Return x times the normal cumulative distribution function of x, by the error function, as BERT was trained."""
    import numpy as np

    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1.0 / (1.0 + np.float32(_ERF_P) * z)
    series = np.float32(_ERF[-1]) * t
    for factor in _ERF[-2::-1]:
        series = (series + np.float32(factor)) * t
    erf = np.copysign(1.0 - series * np.exp(-z * z), x)
    activated: Array = np.float32(0.5) * x * (1.0 + erf)
    return activated


class _Weights:
    """The tensors of a `.safetensors` file by name, memory-mapped if they are float32."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._start = 8 + int.from_bytes(self._data[:8], "little")
            self._tensors = json.loads(self._data[8 : self._start])
        except ValueError:
            raise ConfigError(f"{path} is not a safetensors file") from None
        self._path = path
        self._prefix = "bert." if "bert.embeddings.word_embeddings.weight" in self._tensors else ""

    def __getitem__(self, name: str) -> Array:
        import numpy as np

        entry = self._tensors.get(self._prefix + name)
        if entry is None or entry["dtype"] not in ("F32", "F16", "BF16"):
            raise ConfigError(f"{self._path} has no floating-point tensor {name}, so it is not a BERT encoder")
        begin, end = entry["data_offsets"]
        kind: Any = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]]
        if not 0 <= begin <= end <= len(self._data) - self._start:
            raise ConfigError(f"{self._path} is truncated: tensor {name} lies beyond its end")
        raw: Any = np.frombuffer(self._data, kind, (end - begin) // np.dtype(kind).itemsize, self._start + begin)
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        tensor: Array = raw.astype(np.float32, copy=False).reshape(entry["shape"])
        return tensor
