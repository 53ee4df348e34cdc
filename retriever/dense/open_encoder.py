"""Create the encoder that the settings select."""

from __future__ import annotations

from treadle.retriever.config import EncoderSettings
from treadle.retriever.dense.encoders import Encoder, HashingEncoder


def open_encoder(settings: EncoderSettings) -> Encoder:
    """Create the encoder that the settings select.

    Raises ConfigError if the settings are incomplete or contradict the model, EngineError if a download fails.
    """
    if settings.type == "hashing":
        return HashingEncoder(settings)
    if settings.type == "endpoint":
        from treadle.retriever.dense.endpoint_encoder import EndpointEncoder

        return EndpointEncoder(settings)
    from treadle.retriever.dense.encoder_models import find_model, runs_on_torch

    model = find_model(settings)
    if runs_on_torch(model, settings):
        from treadle.retriever.dense.torch_encoder import TorchEncoder

        return TorchEncoder(model, settings)
    from treadle.retriever.dense.bert import BertEncoder

    return BertEncoder(model, settings)
