"""Configurations: frozen dataclasses to and from plain dicts (YAML, JSON), and `key=value` overrides.

A field may be an int, float, bool, str, None, a tuple, a dict with str keys, a dataclass, or one of
several dataclasses. The last is written with its choice, the class name in snake case without a
closing "Config": a field `server: Sgd | Adam` holds {"adam": {"lr": 0.01, ...}}.

>>> from antiphon.schedule import Cosine
>>> to_dict(override(Cosine(rounds=10), ["final=0.1"]))
{'rounds': 10, 'final': 0.1, 'warmup': 0}
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import yaml

Config = TypeVar("Config")
Kind = Any  # a type as it stands in an annotation: `int`, `tuple[str, ...]`, `Sgd | Adam`

# YAML 1.1 takes 1e-3 for a string, for want of a dot.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts, lists and scalars; `from_dict` is its inverse."""
    written = _write(type(config), config)
    assert isinstance(written, dict)
    return written


def from_dict(cls: type[Config], data: Mapping[str, Any]) -> Config:
    """A configuration of class `cls`; fields left out take their defaults."""
    config: Config = _read(cls, data, "")
    return config


def override(config: Config, assignments: Iterable[str]) -> Config:
    """The configuration with fields set by `path=value`: server=yogi, server.lr=0.1, names=a,b (or YAML).

    All are applied, in order, before anything is checked: a choice may be completed by the next one.
    """
    tree = to_dict(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise ValueError(f"{assignment!r} is not an assignment: write key=value, e.g. server.lr=0.1")
        tree = _assign(type(config), tree, path.strip().split("."), text.strip(), "")
    return from_dict(type(config), tree)


def overlay(config: Config, data: Mapping[str, Any]) -> Config:
    """The configuration with what `data` (as from YAML) says differently; a dict may gain new entries."""
    return from_dict(type(config), _overlay(type(config), to_dict(config), data))


def choice_name(cls: type) -> str:
    """What a class is called where one of several is chosen.

    >>> class UnigramConfig: ...
    >>> choice_name(UnigramConfig)
    'unigram'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Config")).lower()


def _members(kind: Kind) -> tuple[Kind, ...]:
    """The types a value of this kind may have: those of a union, or the one itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _choices(kind: Kind) -> dict[str, type]:
    """The dataclasses among the members, by choice name."""
    classes = [member for member in _members(kind) if dataclasses.is_dataclass(member)]
    choices = {choice_name(cls): cls for cls in classes if isinstance(cls, type)}
    assert len(choices) == len(classes), f"two choices of {kind} have one name"
    return choices


def _fields(cls: type) -> dict[str, Kind]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _write(kind: Kind, value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: _write(inner, getattr(value, name)) for name, inner in _fields(type(value)).items()}
        return {choice_name(type(value)): fields} if len(_choices(kind)) > 1 else fields
    if isinstance(value, tuple):
        return [_write(inner, item) for inner, item in zip(_items(kind, len(value)), value, strict=True)]
    if isinstance(value, Mapping):
        return {key: _write(_container(kind, dict)[1], item) for key, item in value.items()}
    return value


def _container(kind: Kind, origin: type) -> tuple[Kind, ...]:
    """The arguments of the tuple[...] or dict[...] among the members; empty when there is none."""
    return next((typing.get_args(m) for m in _members(kind) if typing.get_origin(m) is origin), ())


def _items(kind: Kind, length: int) -> Sequence[Kind]:
    """The kinds of a tuple's items: tuple[int, ...] takes any length, tuple[int, int] two."""
    args = _container(kind, tuple)
    return [args[0]] * length if args[1:] == (Ellipsis,) else args


def _read(kind: Kind, value: Any, path: str) -> Any:
    members, choices = _members(kind), _choices(kind)
    if value is None and types.NoneType in members:
        return None
    if len(choices) > 1 and isinstance(value, str | Mapping):
        name, fields = _chosen(choices, value, path)
        return _read_dataclass(choices[name], fields, path)
    if len(choices) == 1 and isinstance(value, Mapping):
        return _read_dataclass(next(iter(choices.values())), value, path)
    if isinstance(value, Mapping) and (args := _container(kind, dict)):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{_at(path)}: names must be text, not {wrong[0]!r}")
        return {key: _read(args[1], item, _join(path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple) and _container(kind, tuple):
        kinds = _items(kind, len(value))
        if len(kinds) == len(value):
            pairs = zip(kinds, value, strict=True)
            return tuple(_read(inner, item, f"{path}[{i}]") for i, (inner, item) in enumerate(pairs))
    if type(value) in members:
        return value
    # An int will do for a float, never the other way round; bool is no number here.
    if float in members and (type(value) is int or (type(value) is str and _NUMBER.fullmatch(value))):
        return float(value)
    raise ValueError(f"{_at(path)}: expected {_describe(kind)}, not {value!r} ({type(value).__name__})")


def _chosen(choices: Mapping[str, type], value: str | Mapping[str, Any], path: str) -> tuple[str, Any]:
    """Which class a value chooses, and the fields given for it: "adam" or {"adam": {"lr": 0.1}}.

    Fields without a name are those of the first, which was the only one when they were written.
    """
    first, cls = next(iter(choices.items()))
    if isinstance(value, Mapping) and value and value.keys() <= _fields(cls).keys():
        return first, value
    given = {value: {}} if isinstance(value, str) else value
    if len(given) != 1:
        raise ValueError(
            f"{_at(path)}: expected one of {', '.join(choices)}, not {len(given)} names: {given!r}"
        )
    name, fields = next(iter(given.items()))
    if name not in choices:
        raise unknown(name, choices, path, "choice")
    return name, {} if fields is None else fields


def _read_dataclass(cls: type, data: Any, path: str) -> Any:
    fields = _fields(cls)
    if not isinstance(data, Mapping):
        raise ValueError(f"{_at(path)}: expected the fields of {choice_name(cls)}, not {data!r}")
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


def _defaults(cls: type) -> dict[str, Any]:
    """The fields of a dataclass that need not be given, as `to_dict` writes them."""
    kinds, written = _fields(cls), {}
    for field in dataclasses.fields(cls):
        if field.init and not _is_required(field):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            written[field.name] = _write(kinds[field.name], default)
    return written


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _assign(kind: Kind, tree: Any, keys: Sequence[str], text: str, path: str) -> Any:
    """The tree (as `to_dict` wrote it) with the value at `keys` replaced."""
    choices = _choices(kind)
    if not keys:
        value = _parse(kind, text, path)
        if len(choices) > 1 and isinstance(value, str) and value in choices:
            return {value: _defaults(choices[value])}  # whole: the next assignment may reach into it
        return value
    if tree is None and choices:
        raise ValueError(
            f"{_at(path)} is null, so it has no {keys[0]!r}: first set {path}={next(iter(choices))}"
        )
    if len(choices) > 1:
        name, fields = _chosen(choices, tree, path)
        rest = keys[1:] if keys[0] == name else keys  # server.adam.lr is as good as server.lr
        return {name: _assign(choices[name], fields, rest, text, path)}
    if choices:
        kinds = _fields(next(iter(choices.values())))
    elif args := _container(kind, dict):
        kinds = dict.fromkeys(tree, args[1])
    else:
        raise ValueError(f"{_at(path)} is {_describe(kind)}: it has no part {keys[0]!r}")
    key, *rest = keys
    if key == "*" and not choices:  # every entry of a dict: runs.*.rounds.total=5
        return {k: _assign(kinds[k], tree[k], rest, text, _join(path, k)) for k in tree}
    if key not in kinds:  # names of a dict may have points in them: runs.softmax-0.3.rounds.total=5
        key, rest = next(
            (
                (found, keys[end:])
                for end in range(2, len(keys) + 1)
                if (found := ".".join(keys[:end])) in kinds
            ),
            (key, rest),
        )
    if key not in kinds:
        raise unknown(key, kinds, path, "key")
    return {**tree, key: _assign(kinds[key], tree.get(key), rest, text, _join(path, key))}


def _overlay(kind: Kind, tree: Any, data: Any) -> Any:
    """What `data` says, completed by the tree; another choice than the tree's begins from its defaults."""
    if not isinstance(tree, Mapping) or not isinstance(data, Mapping):
        return data
    choices = _choices(kind)
    if len(choices) > 1:
        (name,) = tree
        if data.keys() == {name}:
            return {name: _overlay(choices[name], tree[name], data[name])}
        if not data or data.keys() & choices.keys():
            return data
        return {name: _overlay(choices[name], tree[name], data)}  # as server.lr is as good as server.adam.lr
    kinds = _fields(next(iter(choices.values()))) if choices else {}
    inner = next(iter(_container(kind, dict)[1:]), Any)
    return {**tree, **{k: _overlay(kinds.get(k, inner), tree.get(k), item) for k, item in data.items()}}


def _parse(kind: Kind, text: str, path: str) -> Any:
    """A command-line value: YAML, where the field's type settles what YAML alone would get wrong."""
    members = _members(kind)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if (args := _container(kind, tuple)) and not isinstance(value, list) and types.NoneType not in members:
        return [_parse(args[0], item.strip(), path) for item in text.split(",")] if text else []
    if isinstance(value, bool) and text.lower() not in ("true", "false"):
        value = text  # YAML 1.1 takes yes, no, on and off for booleans
    if str in members and not isinstance(value, str) and type(value) not in members:
        value = text  # a name may look like a number
    return value


def _describe(kind: Kind) -> str:
    names = {types.NoneType: "null", str: "text", bool: "true or false"}
    choices = _choices(kind)
    described = (
        [f"one of {', '.join(choices)}"] if len(choices) > 1 else [f"the fields of {c}" for c in choices]
    )
    others = [member for member in _members(kind) if member not in choices.values()]
    described += [
        names.get(m, m.__name__ if isinstance(m, type) and not typing.get_args(m) else str(m)) for m in others
    ]
    return " or ".join(described)


def unknown(name: Any, valid: Iterable[str], path: str, what: str) -> ValueError:
    """The error for a name that is not among the valid ones, with the nearest of them."""
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"{_at(path)}: unknown {what} {name!r}; {hint}valid: {', '.join(valid) or 'none'}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _at(path: str) -> str:
    return path or "configuration"
