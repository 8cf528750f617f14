"""What algorithms learn before a run begins, wherever in another algorithm they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.algorithms.fedavg import FedAvg
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.algorithms.scaffold import Scaffold
from antiphon.core import Algorithm
from antiphon.server.run_context import RunContext, prepare

CONTEXT = RunContext(("speaker/a", "speaker/b", "speaker/c"))


@dataclass(frozen=True)
class Committee:
    """An algorithm with several others inside."""

    members: tuple[Algorithm, ...] = ()
    guests: dict[str, Algorithm] = field(default_factory=dict)


def test_parts_in_fields_tuples_and_dicts_are_prepared() -> None:
    ready = prepare(Committee((FedAvg(), Rehearsed(Scaffold())), {"one": Scaffold()}), CONTEXT)
    known = Scaffold(num_clients=3)
    assert ready == Committee((FedAvg(), Rehearsed(known)), {"one": known})


def test_what_has_nothing_to_learn_is_the_same_object() -> None:
    algorithm = Rehearsed(FedAvg())
    assert prepare(algorithm, CONTEXT) is algorithm
