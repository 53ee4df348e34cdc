"""List the demos: the run of each, its sample world and its engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from treadle.demo.evolve.world import LedgerWorld
from treadle.demo.pages.tasks import write_pages
from treadle.demo.programs.tasks import write_programs
from treadle.demo.world import World
from treadle.demo.world_files import write_world

NUM_DOCUMENTS = 1_000
_HERE = Path(__file__).parent


class DemoWorld(Protocol):
    """Sample world of a demo."""

    def write(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """Write the world's files; return a sentence about them, and the configuration tables that refer to them."""
        ...


@dataclass(frozen=True, slots=True)
class FactsWorld:
    """World of facts to look up.

    Attributes:
        tiers: Questions of the world; see `write_world`.
        num_questions: Number of questions to train on.
        num_heldout: Number of held-out questions, for evaluation.
        environments: Environments that answer the questions, by name; empty for `[environment]`.
    """

    tiers: tuple[int, ...]
    num_questions: int
    num_heldout: int
    environments: tuple[str, ...] = ()

    def write(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """See `DemoWorld`."""
        world = write_world(
            folder,
            documents=NUM_DOCUMENTS,
            questions=self.num_questions,
            heldout_questions=self.num_heldout,
            tiers=self.tiers,
        )
        said = (
            f"{world.num_documents:,} documents, {world.num_train:,} questions to train on and "
            f"{world.num_heldout:,} held out"
        )
        return said, self.tables(world)

    def tables(self, world: World) -> dict[str, Any]:
        """Return the configuration tables that refer to the files of a written world."""
        search = {"search": {"corpus": [str(world.corpus)]}}
        file = {"path": str(world.questions), "split_field": "split"}
        if not self.environments:
            return {"questions": {"sources": [{**file, "source_field": "source"}]}, "environment": search}
        sources = [{**file, "dataset": name, "domain": "qa", "environment": name} for name in self.environments]
        return {"questions": {"sources": sources}, "environments": dict.fromkeys(self.environments, search)}


@dataclass(frozen=True, slots=True)
class ProgramsWorld:
    """World of programs that a human asks for.

    Attributes:
        num_taught: Number of tasks on which the tutor has the dialogues that a model is fine-tuned on.
        num_train: Number of other tasks to train on.
        num_heldout: Number of held-out tasks, for evaluation.
    """

    num_taught: int
    num_train: int
    num_heldout: int

    def write(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """See `DemoWorld`."""
        taught, train, heldout = self.num_taught, self.num_train, self.num_heldout
        written = write_programs(folder, taught=taught, train=train, heldout=heldout)
        said = f"{taught + train:,} programming tasks to train on and {heldout:,} held out"
        return said, program_tables(written.questions)


def program_tables(questions: Path) -> dict[str, Any]:
    """Return the configuration table that refers to the file of a written world of programs."""
    source = {"path": str(questions), "source_field": "dataset", "split_field": "split", "domain": "code"}
    return {"questions": {"sources": [{**source, "scorer": "hidden_tests", "payload": ["reference", "tests"]}]}}


@dataclass(frozen=True, slots=True)
class PagesWorld:
    """World of pages that a human asks for.

    Attributes:
        num_heldout: Number of held-out tasks, for evaluation.
    """

    num_heldout: int

    def write(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """See `DemoWorld`."""
        questions = write_pages(folder, heldout=self.num_heldout)
        source = {"path": str(questions), "source_field": "dataset", "split_field": "split", "domain": "code"}
        tables = {"questions": {"sources": [{**source, "scorer": "pages", "payload": ["page"]}]}}
        return f"{self.num_heldout:,} pages to write", tables


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo.

    Attributes:
        run: Name of its run; the folder of its world is this name with `-world` appended.
        world: Its sample world.
        engines: Engines that it needs.
        tutor_only: Configuration tables that are merged over the others if the demo runs without engines.
        tutors: Models that a tutor serves.
        training: Further configuration files, for the run with engines.
    """

    run: str
    config: Path
    world: DemoWorld
    engines: tuple[str, ...]
    tutor_only: Mapping[str, Any]
    tutors: tuple[str, ...] = ("tutor",)
    training: tuple[Path, ...] = ()

    def tokenizer_tables(self, tokenizer: Path) -> dict[str, Any]:
        """Return the configuration tables that set the tokenizer of the tutors."""
        return {"models": {name: {"server": {"tokenizer": str(tokenizer)}} for name in self.tutors}}


FRONTEND = "colbench-frontend"
"""Demo of dialogues about pages."""
GAP_WORLD = FactsWorld(tiers=(2,), num_questions=240, num_heldout=40, environments=("sequential", "parallel"))
DEMOS: Mapping[str, Demo] = {
    "flywheel": Demo(
        run="demo",
        config=_HERE / "demo.toml",
        # A model of 135 million weights learns questions that one call answers in minutes on two cores.
        world=FactsWorld(tiers=(0,), num_questions=200, num_heldout=100),
        engines=("serve", "sft", "trl"),
        tutor_only={
            "pools": {"max_questions": 60},
            "flow": {"stages": ["pools", "sft_rows", "rollouts", "scores", "report"], "models": ["tutor"]},
            "rollouts": {"sampling": {"max_tokens": 384}},  # bytes, with the tutor's own tokenizer
        },
    ),
    "gap": Demo(
        run="demo-gap",
        config=_HERE / "gap.toml",
        world=GAP_WORLD,
        engines=("serve", "sft"),
        tutor_only={
            "flow": {"stages": ["rollouts", "scores", "report"], "models": ["tutor"]},
            "rollouts": {"sampling": {"max_tokens": 1024}},
            "overrides": {"1/rollouts@tutor": {"split": "heldout"}},
        },
    ),
    "colbench": Demo(
        run="demo-colbench",
        config=_HERE / "colbench.toml",
        world=ProgramsWorld(num_taught=260, num_train=60, num_heldout=32),
        engines=("serve", "sft", "trl"),
        tutor_only={
            "flow": {"stages": ["rollouts", "scores", "report"], "models": ["tutor"]},
            "rollouts": {"sampling": {"max_tokens": 256}},
        },
        tutors=("tutor", "human"),
        training=(_HERE / "colbench_training.toml",),
    ),
    FRONTEND: Demo(
        run="demo-colbench-frontend",
        config=_HERE / "colbench_frontend.toml",
        world=PagesWorld(num_heldout=12),
        engines=("serve", "similarity"),
        tutor_only={},
        tutors=("hasty", "tutor", "human"),
    ),
    "evolve": Demo(
        run="demo-evolve",
        config=_HERE / "evolve.toml",
        world=LedgerWorld(num_train=160),
        engines=("serve", "sft", "trl"),
        tutor_only={
            "flow": {
                "recipe": "agent-evolver",
                "stages": ["exploration", "rollouts", "scores", "experience", "report"],
                "models": ["tutor"],
            },
            "rollouts": {"sampling": {"max_tokens": 256}},
        },
        tutors=("tutor", "task_writer"),
        training=(_HERE / "evolve_training.toml",),
    ),
}
