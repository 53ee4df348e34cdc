"""Derive the schema of a user's function from its annotations and docstring, and convert arguments for its calls."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from treadle.agent.tools.outcome import CallContext
from treadle.core.errors import ConfigError

_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_MAX_ERRORS = 3
_MISSING = inspect.Parameter.empty


class UserSignature:
    """Parameters of one function or method of a user.

    Attributes:
        description: First paragraph of the docstring.
        parameters: JSON schema of the arguments.
    """

    def __init__(self, function: Callable[..., Any], name: str, *, is_method: bool = False) -> None:
        """Read a function; `name` is its name in errors. Raises ConfigError if no schema can be made of it."""
        own = inspect.unwrap(function)
        if getattr(own, "__name__", "") == "<lambda>":
            raise ConfigError(f"{name} is a lambda; write a function with annotations and a docstring")
        if inspect.isgeneratorfunction(own) or inspect.isasyncgenfunction(own):
            raise ConfigError(f"{name} yields its result; return it")
        found = list(inspect.signature(function).parameters.values())[is_method:]
        hints = _annotations(own, name)
        self._takes_context = False
        self._shown: list[inspect.Parameter] = []
        for parameter in found:
            if parameter.kind in _VARIADIC:
                sign = f"{_VARIADIC[parameter.kind]}{parameter.name}"
                raise ConfigError(f"{name} has {sign}, which no model can fill in; name each parameter")
            if hints.get(parameter.name) is CallContext:
                if parameter.name != "context":
                    raise ConfigError(f"{name}: name the parameter {parameter.name!r} `context` to get the CallContext")
                self._takes_context = True
            elif parameter.name not in hints:
                raise ConfigError(f"{name}: annotate the parameter {parameter.name!r}, such as `{parameter.name}: str`")
            else:
                self._shown.append(parameter)
        self.description, docs = _read_docstring(own, name, self._shown)
        # Fields are numbered: a parameter may be called like an attribute of a model, such as `schema`.
        numbered: dict[str, Any] = {
            f"p{number}": _field(name, one, hints[one.name], docs.get(one.name))
            for number, one in enumerate(self._shown)
        }
        self._model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **numbered)
        self.parameters = _json_schema(self._model)

    def arguments(self, given: Mapping[str, Any], context: CallContext) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments of a call, converted to the annotated types.

        Raises ValueError that describes the mistake, in words for the model.
        """
        try:
            made = self._model.model_validate(dict(given))
        except ValidationError as error:
            raise ValueError(_errors(error)) from None
        positional, named = [], {}
        for number, parameter in enumerate(self._shown):
            value = getattr(made, f"p{number}")
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[parameter.name] = value
        if self._takes_context:
            named["context"] = context
        return tuple(positional), named


class _PlainSchema(GenerateJsonSchema):
    """Generator of JSON schemas without titles, which repeat names, and without warnings for defaults beyond JSON."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False


def _annotations(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # any error that evaluating a user's annotation raises
        raise ConfigError(f"{name}: an annotation cannot be resolved: {type(error).__name__}: {error}") from error


def _read_docstring(
    function: Callable[..., Any], name: str, parameters: list[inspect.Parameter]
) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring and the descriptions of parameters."""
    text = inspect.getdoc(function) if function.__doc__ else None
    if not text or not text.strip():
        raise ConfigError(
            f"{name} has no docstring: write what it does, for the model, and what each parameter means under `Args:`"
        )
    try:
        from docstring_parser import ParseError, parse
    except ImportError:
        raise ConfigError(f"{name}: docstrings are read by docstring-parser: pip install 'treadle[tools]'") from None
    try:
        parsed = parse(text)
    except ParseError as error:
        raise ConfigError(f"{name}: its docstring cannot be read: {error}") from error
    whole = "\n".join(filter(None, (parsed.short_description, _continued(parsed))))
    if not whole.strip():
        raise ConfigError(f"{name}: its docstring has no first paragraph; write what the function does")
    names = {one.name for one in parameters}
    docs = {one.arg_name: " ".join((one.description or "").split()) for one in parsed.params}
    return " ".join(whole.split()), {key: doc for key, doc in docs.items() if key in names and doc}


def _continued(parsed: Any) -> str:
    """Return the lines of the first paragraph after its first line."""
    if parsed.blank_after_short_description or not parsed.long_description:
        return ""
    return str(parsed.long_description).partition("\n\n")[0]


def _field(name: str, parameter: inspect.Parameter, annotation: Any, doc: str | None) -> Any:
    """Return a field of the model of arguments. Raises ConfigError for a type without a JSON schema."""
    try:
        TypeAdapter(annotation).json_schema(schema_generator=_PlainSchema)
    except PydanticUserError as error:  # also PydanticInvalidForJsonSchema and PydanticSchemaGenerationError
        shown = inspect.formatannotation(annotation)
        raise ConfigError(
            f"{name}: the parameter {parameter.name!r} is of type {shown}, which has no JSON schema; use str, int, "
            "float, bool, list, dict, Literal, an enum, a dataclass or a pydantic model"
        ) from error
    if isinstance(parameter.default, FieldInfo):
        raise ConfigError(
            f"{name}: Field(...) is the default of {parameter.name!r}; move it into the annotation: "
            f"`{parameter.name}: Annotated[type, Field(...)] = default`"
        )
    more: dict[str, Any] = {"validation_alias": parameter.name, "serialization_alias": parameter.name}
    if doc is not None and not _is_described(annotation):
        more["description"] = doc
    default = ... if parameter.default is _MISSING else parameter.default
    return annotation, Field(default, **more)


def _is_described(annotation: Any) -> bool:
    """Return whether an annotation has its own description, which docstrings do not replace."""
    parts = getattr(annotation, "__metadata__", ())
    return any(isinstance(part, FieldInfo) and part.description for part in parts)


def _json_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_PlainSchema)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _errors(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in details[:_MAX_ERRORS]]
    if len(details) > _MAX_ERRORS:
        said.append(f"and {len(details) - _MAX_ERRORS} more")
    return "; ".join(said)
