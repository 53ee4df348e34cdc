"""An edit of a user's code makes again what depends on it, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.training import own_engines

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.runs.execute import fingerprint_of
from treadle.stages import registry
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig

FILES = {
    "scorers.py": "from treadle.api import Scorer\n\n\nclass Own(Scorer):\n"
    "    async def score(self, task, rollout):\n        return 1.0\n",
    "judges.py": "from treadle.api import Judge\n\n\nclass Own(Judge):\n"
    "    def messages(self, view):\n        return [{'role': 'user', 'content': view.text}]\n\n"
    "    def read(self, text):\n        return True\n",
    "methods.py": "from treadle.api import Ranking, SelectionMethod\n\n\nclass Own(SelectionMethod):\n"
    "    def rank(self, candidates, limit, seed):\n        return Ranking(sorted(candidates.keys))\n",
    "rewards.py": "from treadle.api import Reward, RewardRule\n\n\nclass Own(RewardRule):\n"
    "    def rewards(self, group):\n        return [Reward(score.score) for score in group.scores]\n",
    "credits.py": "from treadle.api import CreditRule\n\n\nclass Own(CreditRule):\n"
    "    def advantages(self, group):\n        return [reward.reward for reward in group.rewards]\n",
    "recipes.py": "from treadle.stages.recipes.calibrate import Calibrate\n\n\nclass Own(Calibrate):\n    pass\n",
}
MODEL = {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
CONFIG = {
    "flow": {
        "recipe": "recipes.py:Own",
        "stages": ["pools", "sft_rows", "sft", "selection", "rl", "rollouts", "scores", "report"],
        "models": ["base"],
    },
    "models": {"base": MODEL, "judge": MODEL | {"model": "j"}},
    "questions": {"sources": [{"path": "q.jsonl", "domain": "math", "scorer": "own"}]},
    "environment": {"search": {"enabled": False}},
    "scorers": {"own": "scorers.py:Own"},
    "scores": {"judges": {"type": "judges.py:Own", "models": ["judge"]}},
    "selection": {"method": "methods.py:Own"},
    "rl": {"start": "embedded", "engine": "engines.py:CopyRl", "reward": "rewards.py:Own", "credit": "credits.py:Own"},
    "sft": {"model": "embedded", "engine": "engines.py:CopySft"},
    "curriculum": {"phases": 1},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    shutil.copy(own_engines.__file__, tmp_path / "engines.py")
    (tmp_path / "q.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fingerprints() -> dict[str, str]:
    config = load_config(TreadleConfig, data=CONFIG)
    return {str(made.address): fingerprint_of(made, {}) for made in flow_instances(config)}


@pytest.mark.parametrize(
    ("file", "made_again"),
    [
        ("scorers.py", {"1/scores@base", "1/scores@phase-1", "1/rl@phase-1"}),
        ("judges.py", {"1/scores@base"}),
        ("methods.py", {"1/selection@phase-1"}),
        ("rewards.py", {"1/rl@phase-1"}),
        ("credits.py", {"1/rl@phase-1"}),
        ("engines.py", {"1/rl@phase-1", "1/sft"}),
        ("recipes.py", set()),
    ],
)
def test_edit_of_a_file_changes_the_settings_of_the_stages_that_use_it(
    folder: Path, file: str, made_again: set[str]
) -> None:
    before = fingerprints()
    with (folder / file).open("a") as code:
        code.write("# edited\n")
    after = fingerprints()
    assert after.keys() == before.keys()
    assert {address for address in after if after[address] != before[address]} == made_again


def test_recipe_that_binds_an_input_which_the_stage_does_not_have_is_refused(folder: Path) -> None:
    (folder / "recipes.py").write_text(
        FILES["recipes.py"].replace(
            "    pass\n", "    steps = (*Calibrate.steps[:-1], Step(('report',), reads=READS))\n"
        )
    )
    code = (folder / "recipes.py").read_text()
    for read, said in (
        ("report.scores", ""),
        (
            "report.score",
            "reads has 'report.score', which its stages do not read; they read report.questions, report.scores",
        ),
    ):
        head = f"from treadle.stages.recipes.base import Step\n\nREADS = {{'{read}': ('scores@base',)}}\n"
        (folder / "recipes.py").write_text(head + code)
        if not said:
            fingerprints()
            continue
        with pytest.raises(ConfigError, match=said):
            fingerprints()


def test_entry_point_of_a_stage_has_a_name_that_addresses_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_point_places", lambda group: {"dpo-2": "treadle.report.entry:REPORT"})
    with pytest.raises(ConfigError, match="'dpo-2' of treadle.stages has no name of a stage; use a-z and _"):
        registry.tables_of_others()
