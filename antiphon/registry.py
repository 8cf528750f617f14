"""Open choices: the classes of one kind, found by name.

A name is one of three things:

- a registered name: `@ALGORITHMS.register` above class FedAvg makes it `fed_avg`;
- an entry point of an installed package, in the registry's group (`antiphon.algorithms`, ...);
- `package.module:Class`, for any class that can be imported.

A configuration field that is annotated with a kind, such as `inner: Algorithm`, takes every class of that
kind (`antiphon.config`). The name is stored with a run, so that another process can find the class again.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

MAX_SHOWN = 200  # characters of a name in a message: damaged files have names of thousands

T = TypeVar("T")


def choice_name(cls: type) -> str:
    """Return the name of a class in configurations: snake case, without "Config" at the end.

    A class that has another name in old files sets it as `choice`.

    >>> class UnigramConfig: ...
    >>> choice_name(UnigramConfig)
    'unigram'
    """
    fixed: str = vars(cls).get("choice", "")
    return fixed or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Config")).lower()


@dataclass(eq=False, repr=False)
class Registry(Mapping[str, Any]):
    """The choices of one kind, by name; a mapping that also finds entry points and `package.module:Class`."""

    group: str  # of entry points; errors call the kind by this name
    needs: Sequence[str] = ()  # attributes that a choice must have; those of its kind, if it has one
    # Modules and packages of antiphon that register choices. The first lookup imports them, so a new file in
    # such a package needs no other edit. By default, the module of the kind.
    homes: Sequence[str] = ()
    default: str = ""  # the name that is first in lists, and that old configurations left out
    is_config: bool = True  # choices are dataclasses, whose fields can be written to a configuration
    takes_paths: bool = True  # `package.module:Class` is a name too; false for names from a network
    kind: Any = None  # the protocol of the choices: a field that is annotated with it takes all of them
    _registered: dict[str, Any] = field(default_factory=dict, init=False)
    _is_loaded: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.kind is not None:
            REGISTRIES[self.kind] = self
            self.homes = self.homes or [self.kind.__module__]
            self.needs = [n for n in vars(self.kind) if n == "__call__" or not n.startswith("_")]

    def register(self, choice: T, name: str = "") -> T:
        """Add a choice, by default under the name of its class. Works as a decorator."""
        name = name or choice_name(choice if isinstance(choice, type) else type(choice))
        before = self._registered.setdefault(name, choice)
        if _origin(before) != _origin(choice):
            raise ValueError(
                f"{self.group}: {name!r} is registered twice: {_origin(before)}, {_origin(choice)}"
            )
        self._registered[name] = choice
        return choice

    def named(self, name: str) -> Any:
        """Return a decorator that registers under this name."""
        return lambda choice: self.register(choice, name)

    def __getitem__(self, name: str) -> Any:
        """Return a choice; ValueError if it is unknown, cannot be imported, or is of another kind."""
        self._load_homes()
        if name in self._registered:
            return self._fitting(name, self._registered[name])
        if name not in self:
            raise unknown_name(name, self, "choice")
        point = self._entry_points().get(name) or EntryPoint(name, name, self.group)
        try:
            choice = point.load()
        except Exception as error:  # code of others runs when it is imported
            raise ValueError(
                f"cannot import {point.value!r} ({type(error).__name__}: {error}): "
                "install its package or set PYTHONPATH"
            ) from error
        return self._fitting(name, choice)

    def __contains__(self, name: object) -> bool:
        self._load_homes()
        if name in self._registered or name in self._entry_points():
            return True
        return self.takes_paths and isinstance(name, str) and ":" in name

    def __iter__(self) -> Iterator[str]:
        self._load_homes()
        names = dict.fromkeys([*([self.default] if self.default else []), *self._registered])
        return iter(dict.fromkeys([*names, *self._entry_points()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def name_of(self, cls: type) -> str:
        """Return the name by which another process finds a class; ValueError if there is none."""
        self._load_homes()
        path = _origin(cls)
        is_found = not self.takes_paths or self._is_at_home(cls)  # another process registers it as well
        for name, choice in self._registered.items():
            if choice is cls and is_found:
                return name
        for name, point in self._entry_points().items():
            if f"{point.module}:{point.attr}" == path and self._registered.get(name, cls) is cls:
                return name
        if not self.takes_paths:
            raise ValueError(
                f"{path} is not registered: register it, or give it an entry point of the group {self.group}"
            )
        if cls.__module__ == "__main__" or "<locals>" in path:
            raise ValueError(
                f"{path} cannot be stored: a resumed run could not find it again. "
                "Define the class at the top level of a module that can be imported"
            )
        self._fitting(path, cls)
        return path

    def _is_at_home(self, cls: type) -> bool:
        """Whether a class is registered when the homes are imported."""
        return not self.homes or any(f"{cls.__module__}.".startswith(f"{home}.") for home in self.homes)

    def _fitting(self, name: str, choice: Any) -> Any:
        missing = [what for need in self.needs if (what := _missing(need, choice, self.kind))]
        if self.is_config and not is_dataclass(choice):
            missing.append("dataclass fields (decorate it with @dataclass(frozen=True))")
        elif self.is_config and not choice.__dataclass_params__.frozen:
            missing.append("frozen fields (decorate it with @dataclass(frozen=True))")
        if missing:
            raise ValueError(
                f"{name!r} cannot be used as one of {self.group}: it has no {', '.join(missing)}"
            )
        return choice

    def _entry_points(self) -> Mapping[str, EntryPoint]:
        return _entry_points(self.group, tuple(sys.path))

    def _load_homes(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        for home in self.homes:
            module = importlib.import_module(home)
            for submodule in pkgutil.iter_modules(getattr(module, "__path__", ())):
                importlib.import_module(f"{home}.{submodule.name}")


@lru_cache
def _entry_points(group: str, search_path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return a group's entry points; cached until `sys.path` changes."""
    return {point.name: point for point in _all_entry_points(search_path).select(group=group)}


@lru_cache(maxsize=1)
def _all_entry_points(search_path: tuple[str, ...]) -> Any:
    """Return the entry points of all groups; a file of every installed package is read to find them."""
    return entry_points()


def _missing(need: str, choice: Any, kind: Any) -> str:
    """Return what a choice lacks of an attribute it needs: "" if nothing, or a method with its arguments."""
    if not isinstance(choice, type):
        return "" if hasattr(choice, need) else need
    # Every class has a `__call__`, which makes objects of it: only those that classes define count.
    defined = any(need in vars(cls) for cls in choice.__mro__ if cls is not object)
    if not defined:
        return "" if need in getattr(choice, "__dataclass_fields__", {}) else need
    method, wanted = getattr(choice, need), getattr(kind, need, None)
    if not (inspect.isfunction(method) and inspect.isfunction(wanted)):
        return ""
    parameters = inspect.signature(wanted).parameters
    try:
        inspect.signature(method).bind(*parameters)
    except TypeError:
        return f"{need}({', '.join(parameters)})"
    return ""


def _origin(choice: Any) -> str:
    cls = choice if hasattr(choice, "__qualname__") else type(choice)
    return f"{cls.__module__}:{cls.__qualname__}"


REGISTRIES: dict[Any, Registry] = {}  # a kind, as it stands in annotations -> its choices


def unknown_name(name: Any, valid: Iterable[str], what: str, where: str = "") -> ValueError:
    """Return the error for a name that is not among the valid ones, with the nearest of them."""
    names = list(valid)
    near = get_close_matches(str(name)[:MAX_SHOWN], names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    prefix = f"{where}: " if where else ""
    text = repr(name)
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return ValueError(f"{prefix}unknown {what} {shown}; {hint}valid: {', '.join(names) or 'none'}")


def members_of(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value of this kind may have: those of a union, or the kind itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


class Choices(Mapping[str, type]):
    """The dataclasses that a field takes, by name: those of its union, or all of an open kind."""

    def __init__(self, kind: Any) -> None:
        members = members_of(kind)
        classes = [member for member in members if is_dataclass(member)]
        self.closed = {choice_name(cls): cls for cls in classes if isinstance(cls, type)}
        assert len(self.closed) == len(classes), f"two choices of {kind} have one name"
        self.open: Registry | None = next(
            (REGISTRIES[k] for m in members if (k := kind_of(m)) in REGISTRIES), None
        )

    @property
    def are_named(self) -> bool:
        """Whether a value is written with its name: not where there is only one choice."""
        return self.open is not None or len(self.closed) > 1

    def __getitem__(self, name: str) -> type:
        cls: type = self.closed[name] if name in self.closed or self.open is None else self.open[name]
        return cls

    def __contains__(self, name: object) -> bool:
        return name in self.closed or (self.open is not None and name in self.open)

    def __iter__(self) -> Iterator[str]:
        return iter([*(self.open or ()), *self.closed])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def name_of(self, cls: type) -> str:
        if self.open is None or cls in self.closed.values():
            return choice_name(cls)
        return self.open.name_of(cls)


def kind_of(member: Any) -> Any:
    """Return `Algorithm` for `Algorithm[Any]`; None if it cannot be a key."""
    kind = typing.get_origin(member) or member
    return kind if isinstance(kind, typing.Hashable) else None
