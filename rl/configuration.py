"""Define the tables of a run's configuration for reinforcement learning and training on preferences."""

from __future__ import annotations

from treadle.core.config import Section
from treadle.rl.advantages.settings import AdvantagesOptions
from treadle.rl.candidates.settings import CandidatesOptions
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import CurriculumSettings
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.experience.settings import ExperienceOptions
from treadle.rl.guided.settings import GuidedOptions
from treadle.rl.preferences.settings import PreferencesOptions
from treadle.rl.selection.settings import SelectionOptions


class RlTables(Section):
    """Tables of the stages that reinforce policies or train them on preferences."""

    selection: SelectionOptions = SelectionOptions()
    """Stage `selection`: which questions a phase of reinforcement learning trains on."""
    rl: RlOptions = RlOptions()
    """Stage `rl`: how a policy is trained in one phase of reinforcement learning."""
    curriculum: CurriculumSettings = CurriculumSettings()
    """Phases of reinforcement learning."""
    experience: ExperienceOptions = ExperienceOptions()
    """Stage `experience`: what the policy may learn from earlier rollouts, and which models write and check it."""
    preferences: PreferencesOptions = PreferencesOptions()
    """Stage `preferences`: which pairs of trajectories and turns are made."""
    candidates: CandidatesOptions = CandidatesOptions()
    """Stage `candidates`: how alternatives for turns are sampled."""
    advantages: AdvantagesOptions = AdvantagesOptions()
    """Stage `advantages`: how a critic scores candidates for turns."""
    guided_rollouts: GuidedOptions = GuidedOptions()
    """Stage `guided_rollouts`: rollouts of which each turn is the critic's choice among candidates, a diagnostic."""
    dpo: DpoOptions = DpoOptions()
    """Stage `dpo`: how a critic or a policy is trained on pairs."""
