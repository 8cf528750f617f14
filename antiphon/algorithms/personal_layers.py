"""Personal layers: some layers never leave the client; every client has its own.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers",
2019, arXiv:1912.00818: Algorithms 1 and 2.

| paper                      | here                                                                    |
| -------------------------- | ----------------------------------------------------------------------- |
| W_B (base layers)          | the parameters of the inner algorithm's state                           |
| W_Pk (personalised layers) | the client's state "personal/name"; at first, those of the run's start  |

Deviations. Any inner algorithm can be used: the same steps train personal layers and the others. Clients have
different models, so a run should hold out some utterances of each client and score its own model on them
(`held_out`). Other speakers get the base layers with the personal layers of the start of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg, matches, select
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Task, Tensors
from antiphon.tasks.client_work import Answer
from antiphon.tasks.local_training import as_part, part_of
from antiphon.tasks.views import CLIENT_VIEWS, View, ViewPool

PERSONAL = "personal"


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class PersonalView(View):
    """The client adds its own layers to the task, and stores them after training."""

    layers: tuple[str, ...]

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        return replace(task, tensors={**task.tensors, **self._layers(client)}), client

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        layers = self._layers(client)
        shared = {name: delta for name, delta in update.mean.items() if name not in layers}
        trained = {name: p - update.mean[name] for name, p in layers.items() if name in update.mean}
        return replace(update, mean=shared), {**changes, **as_part(trained, PERSONAL)}

    def _layers(self, client: Any) -> Tensors:
        state = part_of(client.state, PERSONAL)
        return {name: state.get(name, p) for name, p in client.base.items() if matches(name, self.layers)}


@ALGORITHMS.register
@dataclass(frozen=True)
class PersonalLayers:
    """An algorithm whose clients keep their own layers, those that `layers` names."""

    inner: Algorithm = FedAvg()
    layers: tuple[str, ...] = ("output.*",)  # patterns of parameter names
    effect: ClassVar[str] = "personal"
    refuses: ClassVar = {
        "reshapes": "a client's layers would not fit the smaller model; write {inside} around personal_layers"
    }

    def init(self, params: Tensors) -> Any:
        select(params, self.layers, "layers")  # every pattern must match a parameter
        return self.inner.init({name: p for name, p in params.items() if not matches(name, self.layers)})

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        return self.inner.round(state, cohort, self.personal(pool))

    def personal(self, pool: Pool) -> Pool:
        """Return a pool through which every client trains and evaluates its own model."""
        return ViewPool(pool, PersonalView(self.layers))
