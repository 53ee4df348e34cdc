"""Run encoders on torch and transformers: any architecture, also on GPUs.

The user must install both packages. No code of a model is run (`trust_remote_code` stays off).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.core.errors import ConfigError, EngineError
from treadle.retriever.config import EncoderSettings
from treadle.retriever.dense.encoder_models import EncoderModel
from treadle.retriever.dense.encoders import Encoder, pool

if TYPE_CHECKING:
    from treadle.retriever.dense.encoders import Vectors


class TorchEncoder(Encoder):
    """A transformers model with pooling over its last layer; float16 on a GPU, float32 on a CPU."""

    def __init__(self, model: EncoderModel, settings: EncoderSettings) -> None:
        """Load the model.

        Raises ConfigError if torch is missing or finds no GPU although one is required, EngineError if the model does
        not load.
        """
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError:
            raise ConfigError(
                f"encoder model {model.name} needs torch and transformers on this machine; install both with pip"
            ) from None
        has_gpu = torch.cuda.is_available()
        if settings.device == "cuda" and not has_gpu:
            raise ConfigError("encoder.device is cuda, but torch finds no GPU; set it to auto or cpu")
        self._device = "cuda" if has_gpu and settings.device != "cpu" else "cpu"
        dtype = torch.float16 if self._device == "cuda" else torch.float32
        try:
            folder = str(model.folder)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=dtype)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0][:300]
            raise EngineError(f"encoder model {model.name} cannot be loaded from {model.folder}: {reason}") from error
        self._model.to(self._device).eval()
        super().__init__(int(self._model.config.hidden_size), model.identity(settings))
        self._pooling = model.pooling
        longest = min(self._tokenizer.model_max_length, _positions(self._model.config))
        self._max_tokens = (min(settings.passage_max_tokens, longest), min(settings.query_max_tokens, longest))
        self._batch_size = settings.batch_size

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> Vectors:
        import numpy as np

        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        # Texts of similar length together, to reduce padding.
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(order), self._batch_size):
            places = order[start : start + self._batch_size]
            vectors[places] = self._pass([texts[place] for place in places], self._max_tokens[is_query])
        return vectors

    def _pass(self, texts: list[str], max_tokens: int) -> Any:
        import torch

        given = self._tokenizer(texts, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt")
        given = given.to(self._device)
        with torch.inference_mode():
            output = self._model(**given)
            if self._pooling == "pooler":
                return output.pooler_output.float().cpu().numpy()
            hidden = output.last_hidden_state.float()
            return pool(hidden, given["attention_mask"].float(), self._pooling).cpu().numpy()


def _positions(config: Any) -> int:
    """Return the number of tokens that a model has positions for; RoBERTa's start after its padding id."""
    positions = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
    return positions - config.pad_token_id - 1 if "roberta" in config.model_type else positions
