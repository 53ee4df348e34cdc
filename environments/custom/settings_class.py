"""Make the settings section of an environment class from its annotated attributes."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, create_model

from treadle.agent.dialects.base import Dialect
from treadle.core.errors import ConfigError
from treadle.environments.custom.base import Environment
from treadle.environments.settings import EnvironmentSettings


def settings_class(environment: type[Environment]) -> type[EnvironmentSettings]:
    """Return a section with a key for each annotated attribute. Raises ConfigError for one without a default."""
    fields: dict[str, Any] = {}
    docs = _attribute_docs(environment)
    for name, annotation in typing.get_type_hints(environment, include_extras=True).items():
        if name.startswith("_") or name in EnvironmentSettings.model_fields or _is_class_variable(annotation):
            continue
        if not hasattr(environment, name):
            raise ConfigError(f"{environment.__name__}.{name} is a setting and needs a default value")
        fields[name] = (annotation, Field(getattr(environment, name), description=docs.get(name)))
    made: type[EnvironmentSettings] = create_model(
        f"{environment.__name__}Settings", __base__=_CustomSettings, __doc__=inspect.getdoc(environment), **fields
    )
    made.environment = environment
    return made


class _CustomSettings(EnvironmentSettings):
    """Settings of an environment class."""

    # Docstrings of attributes are read from the user's class.
    model_config = ConfigDict(use_attribute_docstrings=False)
    environment: ClassVar[type[Environment]]

    @property
    def turn_dialect(self) -> Dialect:
        """See `EnvironmentSettings`."""
        return self.environment.dialect

    @property
    def role_names(self) -> tuple[str, ...]:
        """See `EnvironmentSettings`."""
        return self.environment.roles

    @property
    def version(self) -> int:
        """See `EnvironmentSettings`."""
        return self.environment.version

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """See `EnvironmentSettings`."""
        return {"system": self.environment.system}


def _is_class_variable(annotation: Any) -> bool:
    return annotation is ClassVar or typing.get_origin(annotation) is ClassVar


def _attribute_docs(environment: type[Environment]) -> dict[str, str]:
    """Return the docstrings below the attributes of a class and its bases, by name."""
    docs: dict[str, str] = {}
    for cls in reversed(environment.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError, SyntaxError):
            continue  # a class without source has no docstrings to show
        (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)] or [[]]
        for node, after in zip(body, body[1:], strict=False):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                docs[node.target.id] = inspect.cleandoc(str(after.value.value))
    return docs
