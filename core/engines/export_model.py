"""Export a trained state as a model folder in Hugging Face format; runs in the environment of an engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core.engines.model_hub import first_sentence

_COMMIT = re.compile(r"[0-9a-f]{40}")
_METADATA_FILES = ("config.json",)
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)


class BaseModelMissing(Exception):
    """Error: the base model of a training is not available."""


def fetch_metadata_files(base: str, revision: str = "main") -> Path:
    """Return a folder with the configuration and tokenizer of a folder or hub id; fetch them if necessary.

    This finds a wrong name or an unreachable hub before any other work is done. Raise BaseModelMissing for them.
    """
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(base, revision=revision, allow_patterns=[*_METADATA_FILES, *_COPIED]))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise BaseModelMissing(first_sentence(error)) from error
    if not (folder / "config.json").is_file():
        raise BaseModelMissing(f"{base} has no config.json")
    return folder


def commit_of(folder: Path) -> str:
    """Return the hub commit of a folder of `fetch_metadata_files`; empty for a folder that is not from the hub."""
    return folder.name if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) else ""


def write_model(
    base: str, state: Path, folder: Path, *, is_adapter: bool, revision: str = "main", in_32_bits: bool = False
) -> None:
    """Write the trained model to `folder` in Hugging Face format; it appears as a whole or not at all.

    The number type is the base's, or fp32 with `in_32_bits`: rounding to 16 bits would undo a small training step.

    `state` holds the trained weights, or adapters to merge into those of `base`, a folder or a hub id. Training takes
    token ids and adds none, so tokenizer, chat template and generation defaults are copied from the base: transformers
    would write the same content differently. Raise BaseModelMissing if the base is not available.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    metadata_files = fetch_metadata_files(base, revision)
    base_config = AutoConfig.from_pretrained(base, revision=revision)
    unfinished = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    if is_adapter:
        from peft import PeftModel

        # Merged in 32 bits: in the base's 16 bits, the sum would be rounded twice.
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, revision=revision)
        model = PeftModel.from_pretrained(model, str(state)).merge_and_unload()
    else:
        model = AutoModelForCausalLM.from_pretrained(str(state), dtype="auto")
    is_typed = isinstance(base_config.dtype, torch.dtype) and not in_32_bits
    dtype = base_config.dtype if is_typed else torch.float32
    # Training turns the cache off, and the saved configuration would keep it off.
    model.config.use_cache = getattr(base_config, "use_cache", True)
    model.to(dtype).save_pretrained(str(unfinished))
    for name in _COPIED:
        (unfinished / name).unlink(missing_ok=True)
        source = metadata_files / name
        if source.is_file():
            shutil.copyfile(source, unfinished / name)
    unfinished.rename(folder)


def greedy_ids(folder: Path, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    """Return the greedy continuation of `prompt` by the model in `folder`; see `continue_greedily`."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto").to(device).eval()
    return continue_greedily(model, prompt, num_tokens)


def continue_greedily(model: Any, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    """Return the greedy continuation of a prompt: always the likeliest token id, even after the end of a turn.

    The result has `ids` and `margins`: the difference between the likeliest log-probability and the next. Another
    engine may differ if a margin is within its rounding.
    """
    import torch

    ids: list[int] = []
    margins: list[float] = []
    cache, given = None, list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            out = model(torch.tensor([given], device=model.device), past_key_values=cache, use_cache=True)
            best = torch.log_softmax(out.logits[0, -1].float(), -1).topk(2)
            ids.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            cache, given = out.past_key_values, [ids[-1]]
    return {"ids": ids, "margins": margins}
