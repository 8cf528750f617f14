"""Personal layers: some layers never leave the client, and every client has its own.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers",
2019, arXiv:1912.00818: Algorithms 1 and 2.

| paper                      | here                                                                    |
| -------------------------- | ----------------------------------------------------------------------- |
| W_B (base layers)          | the parameters of the inner algorithm's state                           |
| W_Pk (personalised layers) | the client's state "personal/name"; at first, as the run began          |

Deviations. The inner algorithm may be any: personal layers are trained by the same steps as the others.
Models of clients differ, so a run should hold out some utterances of each client and score its own model on
them (`held_out`). Speakers that are no clients get the base layers with the personal layers that the run
began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg, select
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Task, Tensors
from antiphon.tasks.client_work import Answer
from antiphon.tasks.local_training import as_part, part_of
from antiphon.tasks.views import CLIENT_VIEWS, View, ViewPool

PERSONAL = "personal"


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class PersonalView(View):
    """The client adds its own layers to the task, and keeps what was trained of them."""

    layers: tuple[str, ...]

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        return replace(task, tensors={**task.tensors, **self._own(client)}), client

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        own = self._own(client)
        shared = {name: delta for name, delta in update.mean.items() if name not in own}
        trained = {name: own[name] - update.mean[name] for name in own if name in update.mean}
        return replace(update, mean=shared), {**changes, **as_part(trained, PERSONAL)}

    def _own(self, client: Any) -> Tensors:
        start = {name: p for name, p in client.base.items() if is_named(name, self.layers)}
        kept = part_of(client.state, PERSONAL)
        return {name: kept.get(name, p) for name, p in start.items()}


def is_named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@ALGORITHMS.register
@dataclass(frozen=True)
class PersonalLayers:
    """An algorithm around which the layers that `layers` names stay on the clients."""

    inner: Algorithm = FedAvg()
    layers: tuple[str, ...] = ("output.*",)  # patterns of parameter names
    effect: ClassVar[str] = "personal"
    refuses: ClassVar = {
        "reshapes": "a client's layers would not fit the smaller model; write federated_pruning around "
        "personal_layers"
    }

    def init(self, params: Tensors) -> Any:
        select(params, self.layers, "layers")  # every pattern must match a parameter
        return self.inner.init({name: p for name, p in params.items() if not is_named(name, self.layers)})

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        return self.inner.round(state, cohort, self.personal(pool))

    def personal(self, pool: Pool) -> Pool:
        """A pool through which every client works on, or evaluates, its own model."""
        return ViewPool(pool, PersonalView(self.layers))
