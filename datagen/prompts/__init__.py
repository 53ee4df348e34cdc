"""Load and render the prompts of stages that make data: operators of pools (arXiv 2601.06860), and other stages.

`<name>_system.txt` is the system message, `<name>.jinja` the user message. A user's folder may replace any of the
files. Values are data: control token markers in them are escaped, they are never read as templates, and a missing value
is an error. The digest of each prompt is stored in the rows that were made with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.core.config import digest_json
from treadle.core.errors import ConfigError
from treadle.core.untrusted.prompt_text import as_data

if TYPE_CHECKING:
    import jinja2

PROMPTS = ("redundancy", "refine_thoughts", "locate_flaw", "analyse_flaw", "replace_step", "reflect")
"""Names of the prompts of operators."""
CONVERT = ("convert",)
"""Names of the prompts of `conversion`."""
SUMMARISE = ("summarise",)
"""Names of the prompts of `exploration`."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts in use: the shipped files, each replaced by the file of the same name in `folder` if there is one.

    Attributes:
        names: Names of the prompts.
        key: Key of the configuration that names the folder.
    """

    folder: Path | None = None
    names: tuple[str, ...] = PROMPTS
    key: str = "pools.prompts"
    _templates: dict[str, jinja2.Template] = field(default_factory=dict, compare=False)

    @cached_property
    def texts(self) -> dict[str, tuple[str, str]]:
        """Prompt name -> texts of `<name>_system.txt` and `<name>.jinja`.

        Raises ConfigError for an unreadable or unknown file.
        """
        if self.folder is not None:
            self._check_folder(self.folder)
        return {name: (self._read(f"{name}_system.txt"), self._read(f"{name}.jinja")) for name in self.names}

    def digest(self, name: str) -> str:
        """Return the digest of a prompt's texts, 16 hex digits."""
        return digest_json(self.texts[name])[:16]

    def digests(self) -> dict[str, str]:
        """Return the digests of all prompts by name."""
        return {name: self.digest(name) for name in self.names}

    def check(self) -> None:
        """Raise ConfigError for a file that cannot be read, compiled or rendered, or that uses an unknown value."""
        import jinja2.meta

        for name in self.texts:
            self._template(name)
            asked, known = (
                jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(text))
                for text in (self.texts[name][1], PromptSet(names=self.names).texts[name][1])
            )
            if strange := sorted(asked - known):
                raise ConfigError(
                    f"prompt {name}.jinja uses the unknown variable {strange[0]!r}; known: {', '.join(sorted(known))}"
                )
            self.messages(name, dict.fromkeys(known, "text"))

    def messages(self, name: str, values: Mapping[str, object]) -> list[dict[str, str]]:
        """Return system and user message of a prompt; control token markers in the values (also in lists) are escaped.

        Raises ConfigError if the template uses a missing value or cannot be rendered.
        """
        import jinja2

        safe = {key: _safe(value) for key, value in values.items()}
        try:
            user = self._template(name).render(**safe).rstrip("\n")
        except jinja2.UndefinedError as error:
            raise ConfigError(f"prompt {name}.jinja: {error.message}; known: {', '.join(sorted(safe))}") from None
        except Exception as error:  # any error that code in a user's template raises
            raise ConfigError(f"prompt {name}.jinja cannot be rendered: {type(error).__name__}: {error}") from error
        return [{"role": "system", "content": self.texts[name][0]}, {"role": "user", "content": user}]

    def _template(self, name: str) -> jinja2.Template:
        import jinja2

        if name not in self._templates:
            environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
            try:
                self._templates[name] = environment.from_string(self.texts[name][1])
            except jinja2.TemplateSyntaxError as error:
                raise ConfigError(f"prompt {name}.jinja, line {error.lineno}: {error.message}") from None
        return self._templates[name]

    def _read(self, file: str) -> str:
        own = self.folder / file if self.folder is not None else None
        if own is not None and own.exists():
            try:
                return own.read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"prompt {own} cannot be read: {error}") from None
        return files(__name__).joinpath(file).read_text(encoding="utf-8").removesuffix("\n")

    def _check_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"{self.key}: {folder} is not a folder")
        known = {f"{name}{ending}" for name in self.names for ending in ("_system.txt", ".jinja")}
        strange = sorted(path.name for path in folder.iterdir() if path.name not in known)
        if strange:
            raise ConfigError(
                f"{self.key}: {folder} contains {strange[0]!r}, which is not a prompt file; known files: "
                + ", ".join(sorted(known))
            )


def _safe(value: object) -> object:
    if isinstance(value, str):
        return as_data(value)
    if isinstance(value, (list, tuple)):
        return [_safe(item) for item in value]
    return value
