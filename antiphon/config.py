"""Configurations: frozen dataclasses to and from plain dicts (YAML, JSON), and `key=value` overrides.

A field may be an int, float, bool, str, None, a tuple, a dict with str keys, a dataclass, one of several
dataclasses, or any dataclass of an open kind (`antiphon.registry`). A choice is written with its name: a
field `server: ServerOptimizer` holds {"adam": {"lr": 0.01, ...}}.

A class whose fields had other names lists them in `renamed: ClassVar = {"old": "new"}`. If the values were
different too, `converted: ClassVar = {"old": function}` turns an old value into present fields. Only present
fields are written.

>>> from antiphon.server.schedules import Cosine
>>> to_dict(override(Cosine(rounds=10), ["final=0.1"]))
{'rounds': 10, 'final': 0.1, 'warmup': 0}
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from antiphon.records.reading import parse_yaml
from antiphon.records.schema import number_of, shown
from antiphon.registry import REGISTRIES, Choices, choice_name, kind_of, members_of, unknown_name

Config = TypeVar("Config")
Kind = Any  # a type as it stands in an annotation: `int`, `tuple[str, ...]`, `Sgd | Adam`


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as nested dicts, lists and scalars; `from_dict` is the inverse."""
    written = _write(type(config), config, "")
    assert isinstance(written, dict)
    return written


def from_dict(cls: type[Config], data: Mapping[str, Any], where: str = "") -> Config:
    """Return a configuration of class `cls`; missing fields take their defaults.

    where: the file that the data is from, for error messages.
    """
    try:
        config: Config = _read(cls, data, "")
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from error
    return config


def override(config: Config, assignments: str | Iterable[str]) -> Config:
    """Return the configuration with fields set by `path=value`: server=yogi, server.lr=0.1, names=a,b.

    One assignment may be a plain text. All are applied in order before anything is checked, so a later one
    may complete an earlier choice.
    """
    tree = to_dict(config)
    for assignment in [assignments] if isinstance(assignments, str) else assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ValueError(f"{assignment!r} is not an assignment: write key=value, e.g. server.lr=0.1")
        tree = _assign(type(config), tree, keys, text.strip(), "")
    return from_dict(type(config), tree)


def overlay(config: Config, data: Mapping[str, Any]) -> Config:
    """Return the configuration with fields replaced by `data` (as from YAML); dicts may get new entries."""
    return from_dict(type(config), _overlay(type(config), to_dict(config), data))


@cache
def _fields(cls: type) -> Mapping[str, Kind]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise ValueError(
            f"the fields of {cls.__module__}:{cls.__qualname__} cannot be read ({error}): "
            "import their types outside of TYPE_CHECKING"
        ) from error
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
    return types.MappingProxyType(kinds)


def _write(kind: Kind, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        choices = Choices(kind)
        if choices.open is None and type(value) not in choices.closed.values():
            raise ValueError(f"{_at(path)}: {value!r} cannot be stored: expected {_describe(kind)}")
        name = choices.name_of(type(value)) if choices.are_named else ""
        kinds = _fields(type(value)).items()
        fields = {key: _write(inner, getattr(value, key), _join(path, key)) for key, inner in kinds}
        return {name: fields} if name else fields
    if isinstance(value, tuple) and len(items := _items(kind, len(value))) == len(value):
        pairs = zip(items, value, strict=True)
        return [_write(inner, item, f"{path}[{i}]") for i, (inner, item) in enumerate(pairs)]
    if isinstance(value, Mapping) and (args := _container(kind, dict)):
        return {key: _write(args[1], item, _join(path, key)) for key, item in value.items()}
    if (registry := Choices(kind).open) is not None and value is not None:
        what = f"one of {registry.group} must be a dataclass"
        raise ValueError(f"{_at(path)}: {value!r} cannot be stored: {what}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{_at(path)}: {value!r} cannot be stored: settings are numbers, text, null, dataclasses, and "
        "tuples and dicts whose annotations say what is in them"
    )


def _container(kind: Kind, origin: type) -> tuple[Kind, ...]:
    """Return the arguments of the tuple[...] or dict[...] among the members; empty if there is none."""
    return next((typing.get_args(m) for m in members_of(kind) if typing.get_origin(m) is origin), ())


def _items(kind: Kind, length: int) -> Sequence[Kind]:
    """Return the kinds of a tuple's items: tuple[int, ...] has any length, tuple[int, int] two."""
    args = _container(kind, tuple)
    return [args[0]] * length if args[1:] == (Ellipsis,) else args


def _read(kind: Kind, value: Any, path: str) -> Any:
    members, choices = members_of(kind), Choices(kind)
    if value is None and types.NoneType in members:
        return None
    if choices.are_named and isinstance(value, str | Mapping):
        cls, fields = _chosen(choices, value, path)
        return _read_dataclass(cls, fields, path)
    if choices.closed and isinstance(value, Mapping):
        return _read_dataclass(next(iter(choices.closed.values())), value, path)
    if isinstance(value, Mapping) and (args := _container(kind, dict)):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{_at(path)}: names must be text, not {wrong[0]!r}")
        return {key: _read(args[1], item, _join(path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple) and _container(kind, tuple):
        kinds = _items(kind, len(value))
        if len(kinds) == len(value):
            pairs = zip(kinds, value, strict=True)
            return tuple(_read(inner, item, f"{path}[{i}]") for i, (inner, item) in enumerate(pairs))
    if type(value) in members and type(value) not in (int, float):
        return value
    try:
        if (number := number_of(value, int in members, float in members)) is not None:
            return number
    except ValueError as error:
        raise ValueError(f"{_at(path)}: {error}") from None
    raise ValueError(f"{_at(path)}: expected {_describe(kind)}, not {shown(value)} ({type(value).__name__})")


def _chosen(choices: Choices, value: str | Mapping[str, Any], path: str) -> tuple[type, Any]:
    """Return the class that a value chooses, and its fields: "adam" or {"adam": {"lr": 0.1}}.

    Fields without a name belong to the first choice, which was the only one when they were written.
    """
    first = _first(choices)
    if isinstance(value, Mapping) and value and _renamed(first, value, path).keys() <= _fields(first).keys():
        return first, value
    named = {value: {}} if isinstance(value, str) else value
    if len(named) != 1:
        names = ", ".join(choices)
        raise ValueError(f"{_at(path)}: expected one of {names}, not {len(named)} names: {shown(named)}")
    name, fields = next(iter(named.items()))
    if name not in choices:
        raise unknown(name, choices, path, "choice")
    try:
        return choices[name], {} if fields is None else fields
    except ValueError as error:
        raise ValueError(f"{_at(path)}: {error}") from error


def _first(choices: Choices) -> type:
    return choices[next(iter(choices))]


def _read_dataclass(cls: type, data: Any, path: str) -> Any:
    fields = _fields(cls)
    if not isinstance(data, Mapping):
        raise ValueError(f"{_at(path)}: expected the fields of {choice_name(cls)}, not {shown(data)}")
    data = _renamed(cls, data, path)
    for key in data:
        if key not in fields:
            raise unknown(key, fields, path, "key")
    values = {key: _read(fields[key], item, _join(path, key)) for key, item in data.items()}
    missing = [f.name for f in dataclasses.fields(cls) if f.name not in values and _is_required(f)]
    if missing:
        raise ValueError(f"{_at(path)}: {choice_name(cls)} needs {', '.join(missing)}")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{_at(path)}: {error}") from error


def _renamed(cls: type, data: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the fields by their present names, with their present values."""
    fields: dict[str, Any] = {}
    for key, value in data.items():
        present = _present(cls, key, value)
        for new in present.keys() & data.keys() - {key}:
            raise ValueError(f"{_at(path)}: {key!r} is the old name of {new!r}: set one of them")
        fields |= present
    return fields


def _present(cls: type, key: str, value: Any) -> dict[str, Any]:
    """Return a present or old field as present fields."""
    if convert := getattr(cls, "converted", {}).get(key):
        return dict(convert(value))
    return {getattr(cls, "renamed", {}).get(key, key): value}


def run_or_folder(value: Any, run: str, folder: str) -> dict[str, Any]:
    """Split an old setting that was the name of a run, or a folder if it had a "/" in it.

    >>> run_or_folder("out/dga", "start_run", "start_folder")
    {'start_run': '', 'start_folder': 'out/dga'}
    """
    is_folder = isinstance(value, str) and "/" in value
    return {run: "" if is_folder else value, folder: value if is_folder else ""}


def _defaults(cls: type, path: str) -> dict[str, Any]:
    """Return the fields of a dataclass that have defaults, as `to_dict` writes them."""
    kinds, written = _fields(cls), {}
    for field in dataclasses.fields(cls):
        if field.init and not _is_required(field):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            written[field.name] = _write(kinds[field.name], default, _join(path, field.name))
    return written


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _assign(kind: Kind, tree: Any, keys: Sequence[str], text: str, path: str) -> Any:
    """Return the tree (as `to_dict` wrote it) with the value at `keys` replaced."""
    choices = Choices(kind)
    if not keys:
        value = _parse(kind, text, path)
        if choices.are_named and isinstance(value, str) and value in choices:
            # With all fields: the next assignment may change one of them.
            return {value: _defaults(_chosen(choices, value, path)[0], path)}
        return value
    if tree is None and choices:
        raise ValueError(
            f"{_at(path)} is null, so it has no {keys[0]!r}: first set {path}={next(iter(choices))}"
        )
    if choices.are_named:
        cls, fields = _chosen(choices, tree, path)
        name = choices.name_of(cls)
        rest = keys[1:] if keys[0] == name else keys  # server.adam.lr means the same as server.lr
        return {name: _assign(cls, fields, rest, text, path)}
    if choices:
        kinds = _fields(_first(choices))
    elif isinstance(tree, Mapping) and (args := _container(kind, dict)):
        kinds = dict.fromkeys(tree, args[1])
    else:
        raise ValueError(f"{_at(path)} is {_describe(kind)}: it has no part {keys[0]!r}")
    key, *rest = keys
    if choices and not rest and key in getattr(_first(choices), "converted", {}):
        return {**tree, **_present(_first(choices), key, _parse(kinds.get(key, str), text, path))}
    key = getattr(_first(choices), "renamed", {}).get(key, key) if choices else key
    if key == "*" and not choices:  # every entry of a dict: runs.*.rounds.total=5
        return {k: _assign(kinds[k], tree[k], rest, text, _join(path, k)) for k in tree}
    for end in range(2, len(keys) + 1):  # names in a dict may contain points: runs.softmax-0.3.rounds.total=5
        if key not in kinds and ".".join(keys[:end]) in kinds:
            key, rest = ".".join(keys[:end]), keys[end:]
    if key not in kinds:
        raise unknown(key, kinds, path, "key")
    return {**tree, key: _assign(kinds[key], tree.get(key), rest, text, _join(path, key))}


def _overlay(kind: Kind, tree: Any, data: Any) -> Any:
    """Return `data` completed by the tree; a choice that differs from the tree's begins with its defaults."""
    if not isinstance(tree, Mapping) or not isinstance(data, Mapping):
        return data
    choices = Choices(kind)
    if choices.are_named:
        (name,) = tree
        if data.keys() == {name}:
            return {name: _overlay(choices[name], tree[name], data[name])}
        if not data or any(key in choices for key in data):
            return data
        return {name: _overlay(choices[name], tree[name], data)}  # server.lr means the same as server.adam.lr
    kinds = _fields(_first(choices)) if choices else {}
    data = _renamed(_first(choices), data, "") if choices else data
    inner = next(iter(_container(kind, dict)[1:]), Any)
    return {**tree, **{k: _overlay(kinds.get(k, inner), tree.get(k), item) for k, item in data.items()}}


def _parse(kind: Kind, text: str, path: str) -> Any:
    """Parse a command-line value as YAML; the field's type decides where YAML would be wrong."""
    members = members_of(kind)
    try:
        value = parse_yaml(text)
    except ValueError:
        value = text
    if (args := _container(kind, tuple)) and not isinstance(value, list) and types.NoneType not in members:
        return [_parse(args[0], item.strip(), path) for item in text.split(",")] if text else []
    if isinstance(value, bool) and text.lower() not in ("true", "false"):
        value = text  # YAML 1.1 reads yes, no, on and off as booleans
    is_entries = isinstance(value, dict) and _container(kind, dict)
    if str in members and not isinstance(value, str) and type(value) not in members and not is_entries:
        value = text  # a name may look like a number
    return value


def _describe(kind: Kind) -> str:
    names = {types.NoneType: "null", str: "text", bool: "true or false"}
    choices = Choices(kind)
    parts = [f"one of {', '.join(choices)}"] if choices.are_named else [f"the fields of {c}" for c in choices]
    for member in members_of(kind):
        if member not in choices.closed.values() and kind_of(member) not in REGISTRIES:
            is_plain = isinstance(member, type) and not typing.get_args(member)
            parts.append(names.get(member, member.__name__ if is_plain else str(member)))
    return " or ".join(parts)


def unknown(name: Any, valid: Iterable[str], path: str, what: str) -> ValueError:
    """Return the error for a name that is not among the valid ones, with the nearest of them."""
    return unknown_name(name, valid, what, _at(path))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _at(path: str) -> str:
    return path or "configuration"
