"""Settings of the exploration that do not fit are refused."""

from __future__ import annotations

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.datagen.exploration.settings import ExplorationOptions


def test_grader_that_is_not_compared_is_trained_on_only_if_no_agreement_is_asked_for() -> None:
    given = {"grader": "judged", "calibration_tasks": 0}
    with pytest.raises(ConfigError, match=r"min_agreement = 0\.7 cannot be checked with calibration_tasks = 0"):
        load_config(ExplorationOptions, data=given)
    assert load_config(ExplorationOptions, data={**given, "min_agreement": 0.0}).min_agreement == 0.0
    assert load_config(ExplorationOptions, data={"calibration_tasks": 0}).grader == "env"
