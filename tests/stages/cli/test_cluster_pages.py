"""The pages about clusters: their files can be read by what they are meant for, and their commands exist."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from treadle.cli.main import cli

GUIDES = Path(__file__).resolve().parents[3] / "docs/guides"
PAGES = ("kubernetes.md", "slurm.md", "ray.md", "scale.md")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ENDS = {"||", "&", "&&", ";", "|", ">", "2>", "#"}


def fences(page: str, language: str) -> list[str]:
    """Blocks of a page in one language."""
    return [text for found, text in _FENCE.findall((GUIDES / page).read_text()) if found == language]


def commands(page: str) -> Iterator[list[str]]:
    """Words behind each `treadle` on a page: in blocks, and in arguments of containers."""
    lines = [line for language in ("", "bash") for block in fences(page, language) for line in unfolded(block)]
    for line in lines:
        words = shlex.split(line, comments=True)
        places = [place for place, word in enumerate(words) if word == "treadle" or word.endswith("/bin/treadle")]
        for place in places[:1]:
            rest = words[place + 1 :]
            yield rest[: next((index for index, word in enumerate(rest) if word in _ENDS), len(rest))]
    for block in fences(page, "yaml"):
        yield from (one["args"] for one in containers(list(yaml.safe_load_all(block))) if "args" in one)


def mentioned(page: str) -> list[list[str]]:
    """Words behind each `treadle` in running text, which may leave out what a command needs."""
    text = _FENCE.sub("", (GUIDES / page).read_text())
    return [shlex.split(line) for line in re.findall(r"`treadle ([^`]+)`", text)]


def unfolded(block: str) -> list[str]:
    """Return lines joined with their backslash continuations."""
    return block.replace("\\\n", " ").splitlines()


def containers(tree: Any) -> Iterator[dict[str, Any]]:
    """All containers of a manifest."""
    if isinstance(tree, dict):
        yield from tree.get("containers", ())
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from containers(item)


def check(words: list[str]) -> None:
    """Raise click's error for a command or an option that does not exist."""
    group: click.Command = cli
    context = click.Context(cli)
    while isinstance(group, click.Group):
        _, found, words = group.resolve_command(context, words)
        assert found is not None
        group = found
    group.make_context(group.name, words, parent=context)


@pytest.mark.parametrize("page", PAGES)
def test_page_commands_exist(page: str) -> None:
    found = list(commands(page))
    assert found or page == "scale.md"
    for words in found:
        check(words)
    for words in mentioned(page):
        with contextlib.suppress(click.MissingParameter):
            check(words)


def test_wrong_option_is_detected() -> None:
    with pytest.raises(click.UsageError, match="--slow"):
        check(["work", "1/pools", "--run", "big", "--slow"])


@pytest.mark.parametrize("page", PAGES)
def test_page_scripts_are_valid_shell(page: str) -> None:
    for block in fences(page, "bash"):
        assert block.startswith("#!/bin/bash\n#SBATCH --job-name=")
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_page_manifests_are_kubernetes_objects(page: str) -> None:
    for block in fences(page, "yaml"):
        for manifest in yaml.safe_load_all(block):
            assert {"apiVersion", "kind", "metadata"} <= manifest.keys()
            volumes = set(re.findall(r"\{name: (\w+), (?:emptyDir|configMap|persistentVolumeClaim)", block))
            for container in containers(manifest):
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_every_page_has_files() -> None:
    assert all(fences(page, "bash") for page in ("slurm.md", "ray.md"))
    assert all(fences(page, "yaml") for page in ("kubernetes.md", "ray.md"))
