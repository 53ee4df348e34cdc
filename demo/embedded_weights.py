"""Convert GGUF to bf16 safetensors; runs inside an engine environment, which has transformers and torch.

transformers marks a model read from GGUF as quantized, and other programs refuse what it then saves. The weights are
therefore moved into a clean model of the same architecture first.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(gguf: Path, folder: Path) -> None:
    """Write `config.json`, `generation_config.json` and `model.safetensors` (bf16) for a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    plain = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    config = type(loaded.config).from_dict({**plain, "_name_or_path": "", "_model_name_or_path": ""})
    clean = type(loaded)(config).to(torch.bfloat16)
    clean.load_state_dict(loaded.state_dict())
    clean.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
