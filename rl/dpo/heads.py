"""Reject models that are not plain language models on text, which the stage `dpo` cannot train.

The paper of SWEET-RL (arXiv 2503.15478) has a critic that reads pictures and has a regression head. TRL 1.16 trains
regression heads only on text (`RewardTrainer`), for values of whole sequences, not of single turns.
"""

from __future__ import annotations

import json
from pathlib import Path

from treadle.core.errors import ConfigError

_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForRewardModel", "RewardModel")
"""Suffixes of the names of architectures that return values instead of probabilities of tokens."""
_PICTURES = ("vision_config", "image_token_id", "image_token_index")
"""Keys of the configuration of a model that reads pictures."""
_REMEDY = "name a language model for text, whose log-ratios are the scores of turns"


def check_language_model(config: Path, where: str) -> None:
    """Raise ConfigError for a model with a regression head, or one that reads pictures.

    `config` is the model's `config.json`; `where` is the configuration key that names the model. A file that
    is missing, as for a model of the hub, or that cannot be read is not checked here.
    """
    try:
        read = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return
    if not isinstance(read, dict):
        return
    named = [str(one) for one in read.get("architectures") or ()]
    if head := next((one for one in named if one.endswith(_HEADS)), None):
        raise ConfigError(
            f"{where} is a {head}, which has a regression head: its value is of a whole dialogue, so it cannot rank "
            f"turns; {_REMEDY}"
        )
    if any(key in read for key in _PICTURES):
        name = named[0] if named else "model"
        raise ConfigError(
            f"{where} is a {name}, which reads pictures: no trainer that Treadle runs trains a critic on them; "
            f"{_REMEDY}, and which reads as text what the environment hides"
        )
