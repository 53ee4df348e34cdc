"""The devices that a training claims."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.rl.candidates.settings import CandidatesSettings
from treadle.rl.dpo.config import DpoOptions, DpoSettings
from treadle.sft.config import SftOptions, SftSettings
from treadle.tasks.serving.device_shares import CPU, training_shares


def settings_of(kind: type[Any], options: type[Any], **keys: Any) -> Any:
    return kind(options=options(num_devices=2, **keys))


@pytest.mark.parametrize(("kind", "options"), [(SftSettings, SftOptions), (DpoSettings, DpoOptions)])
def test_training_claims_its_gpus_or_the_cpu(
    kind: type[Any], options: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.core.engines.devices.visible_gpus", lambda: ("4", "5", "6", "7"))
    assert training_shares(settings_of(kind, options, variant="cuda", devices=(1, 2))) == {"5": 1.0, "6": 1.0}
    assert training_shares(settings_of(kind, options, variant="cuda")) == {"4": 1.0, "5": 1.0}
    assert training_shares(settings_of(kind, options, variant="cpu")) == {CPU: 1.0}


def test_other_stages_claim_nothing() -> None:
    assert training_shares(CandidatesSettings.model_construct()) == {}
