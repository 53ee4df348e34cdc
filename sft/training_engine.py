"""Define the interface of engines for fine-tuning, and find engines by name.

Documented in docs/behaviour/sft.md, part "Engine".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import SerializeAsAny, WrapValidator
from typing_extensions import TypeAliasType

from treadle.core.engines.config import Machine
from treadle.core.engines.events import EventFile
from treadle.core.engines.training_engine import TrainingEngine, require_engine
from treadle.core.registry import Registry
from treadle.sft.training_plan import Paths, TrainingPlan


class SftEngine(TrainingEngine):
    """Settings of an engine that fine-tunes on tokenised rows, with the methods that train.

    `job` is the content of the command's JSON file: `parquet` (rows), `config` (the plan as YAML), `output` (states),
    `resume`, `model` (folder to write), `prompt` and `num_greedy_tokens` (for the event `greedy`), `events`.
    """

    module: ClassVar[str] = "treadle.sft.engine"
    section: ClassVar[str] = "sft"

    def plan(self, options: Any, paths: Paths, machine: Machine, *, longest_row: int, seed: int) -> TrainingPlan:
        """Return the plan of a training with `options`, an `SftOptions`; raise ConfigError for unsupported options.

        `longest_row` is in tokens. By default the arguments are the keys of `sft`, with the paths and the seed.
        """
        keys = options.model_dump(mode="json", exclude={"engine", "model", "revision"})
        places = {"model_name_or_path": paths.model, "model_revision": options.revision or "main"}
        arguments = {**places, "output_dir": str(paths.output), **keys, "longest_row": longest_row, "seed": seed}
        return TrainingPlan(arguments=arguments, notes=(), machine=machine, engine=self.type)

    def arguments(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the plan, with the base model's commit if the first attempt resolved one."""
        import yaml

        arguments: dict[str, Any] = yaml.safe_load(Path(job["config"]).read_text(encoding="utf-8"))
        return {**arguments, "model_revision": job["revision"]} if job["revision"] else arguments

    def write_prepared(
        self, job: Mapping[str, Any], events: EventFile, versions: Mapping[str, str], base: Path | None = None
    ) -> None:
        """Write the event `prepared`, with the digests that Treadle compares; raise BaseModelMissing.

        `versions` are those of the packages that train, by name; `base` is the folder with the base model's tokenizer,
        by default that of the arguments.
        """
        from treadle.core.chat import ChatTokenizer
        from treadle.core.engines.export_model import commit_of, fetch_metadata_files

        if base is None:
            arguments = self.arguments(job)
            base = fetch_metadata_files(arguments["model_name_or_path"], arguments["model_revision"])
        events.write(
            "prepared",
            versions=dict(versions),
            config_digest=hashlib.sha256(Path(job["config"]).read_bytes()).hexdigest(),
            revision=commit_of(base),
            tokenizer_digest=ChatTokenizer.load(base).digest,
        )


SFT_ENGINES = Registry(
    base=SftEngine,
    key="sft.engine",
    group="treadle.sft_engines",
    example="my_engine.py:MyEngine",
    shipped={"llamafactory": "treadle.sft.llamafactory:LlamaFactory"},
    settings_of=lambda found, place: require_engine(found, place, SftEngine),
)
"""Engines of `sft`."""

AnySftEngine = TypeAliasType(
    "AnySftEngine", Annotated[SerializeAsAny[SftEngine], WrapValidator(SFT_ENGINES.validate), SFT_ENGINES]
)
"""Settings of an engine of any type; a plain string is read as the key `type`."""
