"""Which GPUs a child sees, and which a config may name; GPUs are numbers here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from treadle.core.engines import devices, serving
from treadle.core.engines.config import VllmServer
from treadle.core.engines.devices import chosen_gpus, first_gpus, num_devices, only_gpus
from treadle.core.engines.environments import engine_environ
from treadle.core.engines.gpu_claims import GpuClaims, claim_paths, occupied_gpus
from treadle.core.engines.serving import vllm_arguments
from treadle.core.errors import ConfigError, StorageError
from treadle.rl.config import RlOptions
from treadle.sft.config import SftOptions


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine with four visible GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_GPUS", tmp_path)
    for name in "abcd":
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.usefixtures("machine")
def test_device_numbers_are_indices_among_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_gpus(()) == ("0", "1", "2", "3") and chosen_gpus((3, 1)) == ("3", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6, GPU-f")
    assert chosen_gpus(()) == ("6", "GPU-f") and chosen_gpus((1,)) == ("GPU-f",)
    assert only_gpus((1,)) == {"CUDA_VISIBLE_DEVICES": "GPU-f"} and only_gpus(()) == {}
    with pytest.raises(ConfigError, match=r"devices = \[1, 2\]: there is no GPU 2; those .* are 0 to 1"):
        chosen_gpus((1, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="none can be seen here"):
        chosen_gpus((0,))


def test_device_numbers_are_unchecked_if_gpus_cannot_be_counted(machine: Path) -> None:
    devices._GPUS = machine / "none"
    assert chosen_gpus((2, 0)) == ("2", "0") and chosen_gpus(()) == ("0",)
    assert num_devices(None, "cuda", (2, 0)) == 2


@pytest.mark.usefixtures("machine")
def test_training_uses_the_first_of_the_named_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_devices(None, "cuda") == 4 and num_devices(None, "cuda", (2, 3)) == 2
    assert num_devices(1, "cuda", (2, 3)) == 1 and num_devices(None, "cpu", (2, 3)) == 1
    assert first_gpus(1, only_gpus((2, 3))) == "2"


@pytest.mark.parametrize(
    ("section", "given", "said"),
    [
        (VllmServer, {"devices": [0, 0]}, "name each GPU once"),
        (SftOptions, {"devices": [-1]}, "by its place from 0"),
        (SftOptions, {"devices": [0, 1], "num_devices": 4}, "num_devices 4 is more than the 2 of `devices`"),
        (RlOptions, {"engine": "verl", "num_nodes": 2, "devices": [0]}, "Ray assigns the GPUs"),
    ],
)
def test_contradictory_device_settings_are_refused(section: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        section(**given)


def test_server_spans_its_gpus_unless_its_arguments_say_otherwise() -> None:
    def said(**keys: Any) -> list[str]:
        return vllm_arguments(VllmServer(**keys), "model", "name", 1, "cuda")

    assert said(devices=(0, 1, 2, 3))[-2:] == ["--tensor-parallel-size", "4"]
    assert "--tensor-parallel-size" not in said(devices=(1,)) + said()
    told = said(devices=(0, 1), extra_args=("--data-parallel-size=2",))
    assert told[-1] == "--data-parallel-size=2" and "--tensor-parallel-size" not in told


@pytest.mark.usefixtures("machine")
def test_server_sees_only_its_gpus_and_a_cpu_build_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "python_of", lambda engine, variant: Path("python"))
    for variant, seen in (("cuda", "2,3"), ("cpu", None)):
        settings = VllmServer(variant=variant, model="a/b", devices=(2, 3))  # type: ignore[arg-type]
        _, environ, _ = serving._vllm_command(settings, "name", 1, serving.quiet)
        assert environ.get("CUDA_VISIBLE_DEVICES") == seen


def test_gpus_are_ordered_by_bus_id_unless_configured_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert engine_environ()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert engine_environ()["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_claim_that_fails_halfway_leaves_no_gpu_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path))
    first, second = claim_paths(["GPU-a", "GPU-b"]).values()
    second.mkdir(parents=True)  # The lock file cannot be written.
    claims = GpuClaims()
    with pytest.raises(StorageError, match="cannot lock"):
        claims.take(["GPU-a", "GPU-b"], "a run")
    assert first.exists() and occupied_gpus(["GPU-a"]) == []
    second.rmdir()
    assert claims.take(["GPU-a", "GPU-b"], "a run") is None and len(occupied_gpus(["GPU-a", "GPU-b"])) == 2
    claims.keep(())
