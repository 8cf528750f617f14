"""The facts that an algorithm gets before a run begins."""

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


@dataclass(frozen=True)
class RunContext:
    """What is known before the first round of a run."""

    clients: tuple[str, ...] = ()  # all clients that may be drawn for training
    valid: tuple[str, ...] = ()  # validation clients; they live with the server
    seed: int = 0
    num_rounds: int = 0
    largest_client: int = 0  # the number of utterances of the largest client; 0: not known
    cohort: int = 0  # the number of clients that a round is planned for
    save_every: int = 1  # rounds between checkpoints
    num_processes: int = 1
    has_server_speech: bool = True  # whether the server has speech of its own
    folder: Path | None = None  # of the run; None while settings are only checked
    # Runs an action in the first process of the run; all processes get its result.
    on_first_process: Callable[[Callable[[], Any]], Any] = lambda action: action()
    structure: Callable[[], Sequence[Any]] = _no_structure  # layers that can lose units
    # Settings of labels, a teacher's run and folder -> settings and folder that every process can open.
    resolve_labels: Callable[[Any, str, str], tuple[Any, str]] = lambda labels, run, folder: (labels, folder)


def prepare(part: Part, context: RunContext) -> Part:
    """Return an algorithm that is ready for a run, after the parts in its fields."""
    check_order(part)
    prepared: Part = _prepare(part, context)
    return prepared


def _prepare(part: Any, context: RunContext) -> Any:
    """Prepare a dataclass, or those in a tuple or a dict."""
    if isinstance(part, tuple):
        items = tuple(_prepare(item, context) for item in part)
        return items if any(new is not old for new, old in zip(items, part, strict=True)) else part
    if isinstance(part, dict):
        return {key: _prepare(item, context) for key, item in part.items()}
    if not is_dataclass(part) or isinstance(part, type):
        return part
    inner = {f.name: getattr(part, f.name) for f in fields(part) if f.init}
    ready = {name: _prepare(value, context) for name, value in inner.items()}
    changed = {name: value for name, value in ready.items() if value is not inner[name]}
    part = replace(part, **changed) if changed else part
    method = getattr(part, "prepare", None)
    return method(context) if method else part


def check_order(algorithm: Any) -> None:
    """Refuse a wrapper with `refuses = {effect: advice}` around a part that has one of these effects."""
    for part in parts_of(algorithm):
        refuses = getattr(part, "refuses", {})
        for inside in parts_of(getattr(part, "inner", None)):
            if advice := refuses.get(getattr(inside, "effect", "")):
                name = choice_name(type(inside))
                raise ValueError(f"{choice_name(type(part))} around {name}: {advice.format(inside=name)}")


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
