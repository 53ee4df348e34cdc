"""Turn the annotated attributes of a user's class into configuration keys."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import typing
from collections.abc import Container, Mapping
from typing import Any, ClassVar

from pydantic import Field

from treadle.core.errors import ConfigError


def attribute_fields(cls: type, reserved: Container[str] = ()) -> dict[str, Any]:
    """Return a pydantic field, with the docstring below it as help, for each annotated attribute of a class.

    Class variables, private attributes and `reserved` names are left out. Raises ConfigError for an attribute without a
    default, or whose annotation cannot be resolved.
    """
    try:
        annotations = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{cls.__name__}: an annotation cannot be resolved: {error}") from error
    fields: dict[str, Any] = {}
    docs = attribute_docs(cls)
    for name, annotation in annotations.items():
        if name.startswith("_") or name in reserved or _is_class_variable(annotation):
            continue
        if not hasattr(cls, name):
            raise ConfigError(f"{cls.__name__}.{name} is a setting and needs a default value")
        fields[name] = (annotation, Field(getattr(cls, name), description=docs.get(name)))
    return fields


def _is_class_variable(annotation: Any) -> bool:
    return annotation is ClassVar or typing.get_origin(annotation) is ClassVar


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the docstrings below the attributes of a class and its bases, by name."""
    return {name: text for one in reversed(cls.__mro__) for name, text in _own_docs(one).items()}


@functools.cache
def _own_docs(cls: type) -> Mapping[str, str]:
    docs: dict[str, str] = {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return docs  # a class without source has no docstrings to show
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)] or [[]]
    for node, after in zip(body, body[1:], strict=False):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[node.target.id] = inspect.cleandoc(str(after.value.value))
    return docs
