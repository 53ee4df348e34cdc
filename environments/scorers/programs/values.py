"""Write values as data, inside a sandbox: a list of a kind and its content, which `compare` reads.

Content is read by the methods of the standard types, so a class that derives from one counts as that type, and an
`__eq__` of a program has no effect. Values that Python finds equal are written alike, or `compare` treats them so.

The sandbox contains no other file of Treadle, so this module imports only the standard library, and little of it: a
type of another module is found by the name of that module, which the program itself has imported.
"""

import collections
import contextlib
import enum
import json
import types
from collections.abc import Callable, Iterable
from typing import Any

Written = list[Any]
"""A kind and its content."""


class Incomparable(Exception):
    """A value whose content cannot be compared."""


def encoded(value: Any) -> Written:
    """Return a value as JSON: a list of its kind and its content. Raises Incomparable."""
    if value is None or isinstance(value, bool):
        return ["none"] if value is None else ["bool", value]
    for base, encode in BUILT_IN:
        if isinstance(value, base):
            return encode(value)
    for base in type.__dict__["__mro__"].__get__(type(value)):
        module = str(base.__module__).partition(".")[0]
        write = BY_MODULE.get(module) or BY_NAME.get(f"{module}.{base.__name__}")
        if write is not None:
            return write(value)
    if type(value).__module__ == "solution":
        return of_object(value)
    raise Incomparable(f"a value of type {type(value).__name__} cannot be compared")


def pairs_of(pairs: Iterable[tuple[Any, Any]]) -> list[list[Written]]:
    """Return keys and values, in their order."""
    return [[encoded(key), encoded(one)] for key, one in pairs]


def of_mapping(value: dict[Any, Any]) -> Written:
    """Return the pairs of a dict, sorted by their keys; those of an ordered one keep their order."""
    if isinstance(value, collections.OrderedDict):
        keys = collections.OrderedDict.__iter__(value)
        return ["ordered", pairs_of((key, dict.__getitem__(value, key)) for key in keys)]
    kind = "counter" if isinstance(value, collections.Counter) else "dict"
    return [kind, sorted(pairs_of(dict.items(value)), key=json.dumps)]


def of_set(value: Iterable[Any]) -> Written:
    """Return the sorted items of a set or frozenset; both are written alike."""
    return ["set", sorted(map(encoded, value), key=json.dumps)]


def of_object(value: Any) -> Written:
    """Return class name and attributes of an instance of a class that the program defines; of an enum, its member."""
    name = type(value).__name__
    if isinstance(value, enum.Enum):
        return ["object", name, encoded(value.name)]
    found = attributes_of(value)
    if isinstance(value, BaseException):
        found["args"] = value.args
    fields = getattr(type(value), "__dataclass_fields__", {})
    if fields and type(value).__dataclass_params__.eq:
        found = {name: one for name, one in found.items() if name in fields and fields[name].compare}
    return ["object", name, of_mapping(found)]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance, with those in slots."""
    found = {}
    for base in type.__dict__["__mro__"].__get__(type(value)):
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name != "__dict__" and hasattr(value, name):
                found[name] = getattr(value, name)
    with contextlib.suppress(AttributeError):
        found |= object.__getattribute__(value, "__dict__")
    return found


def of_buffer(value: memoryview) -> Written:
    """Return the items of a memory view; a flat view of bytes is written like bytes."""
    if value.format == "B" and value.ndim == 1:
        return ["bytes", value.hex()]
    return ["items", list(value.shape or ()), [encoded(one) for one in value.tolist()]]


def of_type(value: type) -> Written:
    """Return name and module of a class; classes of programs have the same module, so they are compared by name."""
    return ["type", value.__qualname__, value.__module__]


def of_numpy(value: Any) -> Written:
    """Return an array with its shape, or a scalar as a built-in value."""
    shape = getattr(value, "shape", None)
    is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m")
    if shape:
        items = list(value.ravel()) if is_time else value.ravel().tolist()
        return ["array", list(shape), [encoded(one) for one in items]]
    plain = value.item() if hasattr(value, "item") else value
    if is_time and plain is None:
        return ["missing"]
    # Times that are finer than microseconds, or too far away, are whole numbers of their unit.
    if is_time and isinstance(plain, int):
        return ["text", str(value.dtype), str(value)]
    if type(plain) is type(value):
        raise Incomparable(f"a value of type {type(value).__name__} cannot be compared")
    return encoded(plain)


def of_pandas(value: Any) -> Written:
    """Return a table, a column or an index, whose missing values are all equal; a time like one of `datetime`."""
    name = type(value).__name__
    if name == "DataFrame":
        # By place, since names of columns may be repeated.
        values = [[encoded(one) for one in value.iloc[:, place].tolist()] for place in range(len(value.columns))]
        columns = [[encoded(name), content] for name, content in zip(value.columns, values, strict=True)]
        return ["frame", [encoded(one) for one in value.index.tolist()], columns]
    if hasattr(value, "tolist"):
        index = value.index.tolist() if name == "Series" else []
        return ["series", [encoded(one) for one in index], [encoded(one) for one in value.tolist()]]
    if name in ("NaTType", "NAType"):
        return ["missing"]
    is_exact = not getattr(value, "nanosecond", 0) and not getattr(value, "nanoseconds", 0)
    return TIMES_OF_PANDAS.get(name, of_text)(value) if is_exact else of_text(value)


def of_sympy(value: Any) -> Written:
    """Return a whole number or a fraction as such, and other expressions as text."""
    if getattr(value, "is_Rational", False):
        return of_ratio(int(value.p), int(value.q))
    return of_text(value)


def of_ratio(numerator: int, denominator: int) -> Written:
    """Return a fraction in its lowest terms."""
    if denominator == 1:
        return encoded(numerator)
    return ["fraction", hex(numerator), hex(denominator)]


def of_fraction(value: Any) -> Written:
    """See `of_ratio`."""
    return of_ratio(value.numerator, value.denominator)


def of_duration(value: Any) -> Written:
    """Return a difference of times in microseconds."""
    return ["duration", hex(microseconds(value))]


def microseconds(value: Any) -> int:
    """Return a difference of times as a whole number of microseconds."""
    seconds: int = value.days * 86_400 + value.seconds
    return seconds * 1_000_000 + int(value.microseconds)


def of_time(value: Any) -> Written:
    """Return the time of a day; in UTC if its zone has a known offset."""
    return of_clock("time", 0, value)


def of_datetime(value: Any) -> Written:
    """Return a date with a time; in UTC if the zone has a known offset, so that zones do not matter."""
    return of_clock("datetime", value.toordinal(), value)


def of_clock(kind: str, days: int, value: Any) -> Written:
    """Return days and the time of a day in microseconds, and whether the time is in UTC."""
    minutes = (days * 24 + value.hour) * 60 + value.minute
    total = (minutes * 60 + value.second) * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    return [kind, hex(total), False] if offset is None else [kind, hex(total - microseconds(offset)), True]


def of_path(value: Any) -> Written:
    """Return a path; Windows paths are compared without regard to case."""
    is_windows = any(one.__name__ == "PureWindowsPath" for one in type(value).__mro__)
    return ["path", str(value).lower() if is_windows else str(value), is_windows]


def of_pattern(value: Any) -> Written:
    """Return a regular expression by its text and its flags."""
    return ["pattern", encoded(value.pattern), int(value.flags)]


def of_text(value: Any) -> Written:
    """Return the name of a type and the value as text, for types whose values are equal if their texts are."""
    return ["text", type(value).__name__, str(value)]


BUILT_IN: tuple[tuple[type | tuple[type, ...], Callable[[Any], Written]], ...] = (
    (int, lambda value: ["int", hex(int.__add__(value, 0))]),
    (float, lambda value: ["float", float.hex(value)]),
    (complex, lambda value: ["complex", float.hex(value.real), float.hex(value.imag)]),
    (str, lambda value: ["str", str.__getitem__(value, slice(None))]),
    (bytes, lambda value: ["bytes", bytes.hex(value)]),
    (bytearray, lambda value: ["bytes", bytearray.hex(value)]),
    (memoryview, of_buffer),
    (collections.deque, lambda value: ["deque", [encoded(one) for one in collections.deque.__iter__(value)]]),
    (collections.ChainMap, lambda value: encoded(dict(value))),
    ((collections.UserDict, collections.UserList, collections.UserString), lambda value: encoded(value.data)),
    (list, lambda value: ["list", [encoded(one) for one in list.__iter__(value)]]),
    (tuple, lambda value: ["tuple", [encoded(one) for one in tuple.__iter__(value)]]),
    (dict, of_mapping),
    (types.MappingProxyType, lambda value: encoded(dict(value))),
    (set, lambda value: of_set(set.__iter__(value))),
    (frozenset, lambda value: of_set(frozenset.__iter__(value))),
    (type({}.keys()), of_set),
    (type({}.items()), of_set),
    (range, lambda value: ["range", [hex(value.start), hex(value.stop), hex(value.step)]]),
    (slice, lambda value: ["slice", [encoded(one) for one in (value.start, value.stop, value.step)]]),
    (types.SimpleNamespace, lambda value: ["namespace", of_mapping(vars(value))]),
    (type, of_type),
    (type(...), lambda _: ["constant", "Ellipsis"]),
    (type(NotImplemented), lambda _: ["constant", "NotImplemented"]),
)
"""Types with the functions that write their values; the first type that a value has is used.

`bool`, a subclass of `int`, is handled before them.
"""
BY_MODULE: dict[str, Callable[[Any], Written]] = {"numpy": of_numpy, "pandas": of_pandas, "sympy": of_sympy}
"""Top-level module of a type, or of one that it derives from -> how its values are written."""
BY_NAME: dict[str, Callable[[Any], Written]] = {
    "decimal.Decimal": lambda value: ["decimal", str(value)],
    "fractions.Fraction": of_fraction,
    "datetime.datetime": of_datetime,
    "datetime.date": lambda value: ["date", hex(value.toordinal())],
    "datetime.time": of_time,
    "datetime.timedelta": of_duration,
    "datetime.timezone": lambda value: ["zone", hex(microseconds(value.utcoffset(None)))],
    "zoneinfo.ZoneInfo": of_text,
    "array.array": lambda value: ["items", [len(value)], [encoded(one) for one in value.tolist()]],
    "pathlib.PurePath": of_path,
    "re.Pattern": of_pattern,
    "uuid.UUID": of_text,
    "ipaddress._IPAddressBase": of_text,
}
"""Module and name of a type, or of one that it derives from -> how its values are written."""
TIMES_OF_PANDAS = {"Timestamp": of_datetime, "Timedelta": of_duration}
