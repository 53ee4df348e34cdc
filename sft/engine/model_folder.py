"""After training: adapters merged into the base model, and a look at what was saved."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.sft.engine.training import STATE_MARKER

_LEFT_OUT = frozenset(
    {
        "training_args.bin",
        "trainer_state.json",
        "trainer_log.jsonl",
        "train_results.json",
        "all_results.json",
        "training_loss.png",
        "README.md",
        "Modelfile",
        STATE_MARKER,
    }
)
"""Files of the training beside the model; a pickle among them."""


def write_model(arguments: dict[str, Any], output: Path, folder: Path) -> None:
    """Make `folder` the trained model in Hugging Face format, in the base's number type; there whole or not at all.

    With LoRA the adapters are merged into the base model. The tokenizer's files are those that LLaMA-Factory saved.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base, revision = arguments["model_name_or_path"], arguments.get("model_revision", "main")
    dtype = _dtype_of(base, revision)
    is_lora = arguments.get("finetuning_type") == "lora"
    unfinished = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for path in output.iterdir():
        name = path.name
        is_weights = name.endswith((".safetensors", ".safetensors.index.json", ".bin"))
        if path.is_file() and name not in _LEFT_OUT and not is_weights and not name.startswith("adapter_"):
            shutil.copyfile(path, unfinished / name)
    source = base if is_lora else str(output)
    options = {"revision": revision} if is_lora else {}
    # Merged in 32 bits: in the base's 16 the sum would be rounded twice.
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32 if is_lora else "auto", **options)
    if is_lora:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(output)).merge_and_unload()
    model.to(dtype).save_pretrained(str(unfinished))
    AutoTokenizer.from_pretrained(str(unfinished))
    unfinished.rename(folder)


def _dtype_of(base: str, revision: str) -> Any:
    """Number type of the base model's weights."""
    import torch
    from transformers import AutoConfig

    dtype = AutoConfig.from_pretrained(base, revision=revision).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def greedy_ids(folder: Path, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    """What the model in `folder` writes after `prompt`, always the likeliest id, ends of a turn included.

    Returns `ids` and `margins`: by how much the likeliest log-probability exceeds the next. Another engine may differ
    where a margin is within its rounding.
    """
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype="auto").to(device).eval()
    ids: list[int] = []
    margins: list[float] = []
    cache, given = None, list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            out = model(torch.tensor([given], device=device), past_key_values=cache, use_cache=True)
            best = torch.log_softmax(out.logits[0, -1].float(), -1).topk(2)
            ids.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            cache, given = out.past_key_values, [ids[-1]]
    return {"ids": ids, "margins": margins}
