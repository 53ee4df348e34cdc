"""Refuse models that are trained on preferences in another way than as language models on token ids.

The paper of SWEET-RL (arXiv 2503.15478) has a critic of pictures with one regression head. TRL 1.16 trains a regression
head on ids of text alone (`RewardTrainer`), and its values are of whole sequences, not of single turns.
"""

from __future__ import annotations

import json
from pathlib import Path

from treadle.core.errors import ConfigError

_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForRewardModel", "RewardModel")
"""Ends of the names of architectures that return values in place of probabilities of tokens."""
_PICTURES = ("vision_config", "image_token_id", "image_token_index")
"""Keys of the configuration of a model that reads pictures."""
_REMEDY = "name a language model for text, whose log-ratios are the scores of turns"


def check_language_model(config: Path, where: str) -> None:
    """Raise ConfigError for a model with a regression head, or one of pictures.

    `config` is its `config.json`, which may be missing; `where` is the key that names the model. A file that cannot be
    read is left to the trainer.
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
