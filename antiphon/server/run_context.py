"""What an algorithm must know before a run begins, and how it gets to know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from antiphon.core import Pool
from antiphon.registry import choice_name

Part = TypeVar("Part")


def _no_structure() -> Sequence[Any]:
    raise ValueError("the layers of this model are not known")


def _same_labels(labels: Any, teacher_run: str, teacher_folder: str) -> tuple[Any, str]:
    return labels, teacher_folder


@dataclass(frozen=True)
class RunContext:
    """What is known before the first round."""

    clients: tuple[str, ...] = ()  # all clients that may be drawn for training
    valid: tuple[str, ...] = ()  # validation clients; they live with the server
    seed: int = 0
    num_rounds: int = 0
    folder: Path | None = None  # of the run; None while settings are only checked
    structure: Callable[[], Sequence[Any]] = _no_structure  # layers that can lose units (`tasks.layers`)
    # Settings of labels, a teacher's run and folder -> settings and folder that every process can open.
    resolve_labels: Callable[[Any, str, str], tuple[Any, str]] = _same_labels


def prepare(part: Part, context: RunContext) -> Part:
    """Return an algorithm that is ready for a run, after the parts in its fields.

    A wrapper with `refuses = {effect: advice}` raises ValueError around a part with that `effect`.
    """
    inner = {f.name: getattr(part, f.name) for f in fields(part) if f.init}  # type: ignore[arg-type]
    ready = {n: prepare(v, context) for n, v in inner.items() if is_dataclass(v) and not isinstance(v, type)}
    changed = {name: value for name, value in ready.items() if value is not inner[name]}
    part = replace(part, **changed) if changed else part  # type: ignore[type-var]
    refuses = getattr(part, "refuses", {})
    for inside in parts_of(getattr(part, "inner", None)):
        if advice := refuses.get(getattr(inside, "effect", "")):
            raise ValueError(f"{choice_name(type(part))} around {choice_name(type(inside))}: {advice}")
    method = getattr(part, "prepare", None)
    prepared: Part = method(context) if method else part
    return prepared


def parts_of(algorithm: Any) -> Iterator[Any]:
    """Yield an algorithm and those it wraps, the outermost first."""
    while algorithm is not None:
        yield algorithm
        algorithm = getattr(algorithm, "inner", None)


def personal_pool(algorithm: Any, pool: Pool) -> Pool:
    """Return a pool through which each client evaluates its own model; `pool` itself if all share one."""
    for part in parts_of(algorithm):
        if hasattr(part, "personal"):
            pool = part.personal(pool)
    return pool
