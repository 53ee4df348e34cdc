"""Make the tables that the end of a demo shows; only commands that have run one import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.core.figures import Figures
from treadle.core.runs.run import Run
from treadle.demo.demos import DEMOS, GAP_WORLD, PagesWorld, ProgramsWorld
from treadle.demo.dialogue_results import dialogue_figures, dialogues_of
from treadle.demo.evolve.results import heldout_rollouts, ledger_figures
from treadle.demo.evolve.world import LedgerWorld
from treadle.demo.pages.results import page_figures
from treadle.demo.pages.tasks import HELDOUT
from treadle.demo.planning_results import answers_of, planning_figures
from treadle.demo.results import differences, outcome

if TYPE_CHECKING:
    from treadle.tasks.config import TreadleConfig


def demo_figures(run: Run, config: TreadleConfig, name: str) -> list[Figures]:
    """Return the tables of a demo: of its models, or of the environments that one model answers in."""
    models = config.flow.models
    if DEMOS[name].world is GAP_WORLD:
        return [planning_figures(answers_of(run, model, config.named_environments())) for model in models]
    if isinstance(DEMOS[name].world, LedgerWorld):
        rollouts = {model: heldout_rollouts(run, model) for model in models}
        return [ledger_figures(rollouts), differences(run, models, order=models)]
    if isinstance(DEMOS[name].world, ProgramsWorld):
        dialogues = {model: dialogues_of(run, model).values() for model in models}
        return [dialogue_figures(dialogues), differences(run, models, order=models)]
    if isinstance(DEMOS[name].world, PagesWorld):
        dialogues = {model: dialogues_of(run, model, dataset=HELDOUT).values() for model in models}
        return [page_figures(dialogues)]  # nothing was trained, so there are no differences to show
    return [outcome(run, models), differences(run, models)]
