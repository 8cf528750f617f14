"""Ditto: every client also trains its own model, which stays near the global one.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, arXiv:2012.04221: Algorithm 1.

| paper     | here                                                                              |
| --------- | --------------------------------------------------------------------------------- |
| w^t       | the parameters that travel in the inner algorithm's task                          |
| v_k       | the client's state "ditto/name"                                                   |
| λ         | `strength`                                                                        |
| s, η      | `local`: number of steps or epochs, learning rate                                 |

Deviations. Any inner algorithm trains w^t. v_k starts as the global model of the client's first round, not of
the run's. On a GPU the clients' own models are trained one after another, those of the inner algorithm at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from antiphon.algorithms.fedavg import FedAvg
from antiphon.core import ALGORITHMS, Algorithm, Metrics, Pool, Task, Tensors
from antiphon.seeding import derive
from antiphon.tasks.client_work import Answer
from antiphon.tasks.local_training import LocalSteps, LocalTraining, as_part, parameters_in, part_of, seed_of
from antiphon.tasks.views import CLIENT_VIEWS, View, ViewPool

DITTO = "ditto"


@CLIENT_VIEWS.register
@dataclass(frozen=True)
class DittoView(View):
    """After training the global model, the client trains its own. In evaluations it uses its own model."""

    local: LocalTraining
    strength: float

    def before(self, task: Task, client: Any) -> tuple[Task, Any]:
        is_evaluation = task.kind == "evaluate"
        return (replace(task, tensors=_personal_model(task, client)) if is_evaluation else task), client

    def after(self, task: Task, client: Any, answer: Answer) -> Answer:
        update, changes = answer
        if not update.mean:  # the work trained nothing
            return answer
        before, anchor = _personal_model(task, client), parameters_in(task.tensors)
        local = replace(self.local, proximal=self.strength)  # adds λ (v_k − w^t) to the gradient
        trained = client.train(LocalSteps(before, local, derive(seed_of(task), DITTO), anchor=anchor))
        after = {name: before[name] - delta for name, delta in trained.delta.items()}
        return update, {**changes, **as_part(after, DITTO)}


def _personal_model(task: Task, client: Any) -> Tensors:
    """Return v_k; the global model for a client that has none yet."""
    state = part_of(client.state, DITTO)
    return {name: state.get(name, p) for name, p in parameters_in(task.tensors).items()}


@ALGORITHMS.register
@dataclass(frozen=True)
class Ditto:
    """An algorithm whose clients also train their own models."""

    inner: Algorithm = FedAvg()
    local: LocalTraining = LocalTraining()
    strength: float = 0.1
    refuses: ClassVar = {
        "reshapes": "a client's model would not fit the smaller one; write {inside} around ditto",
        "labels": "a client's model would be trained without labels; write self_trained around ditto",
        "personal": "a client's model would lack its own layers; write personal_layers around ditto",
    }

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError(f"strength must not be negative, not {self.strength}")

    def init(self, params: Tensors) -> Any:
        return self.inner.init(params)

    def round(self, state: Any, cohort: Sequence[str], pool: Pool) -> tuple[Any, Metrics]:
        return self.inner.round(state, cohort, self.personal(pool))

    def personal(self, pool: Pool) -> Pool:
        """Return a pool through which every client also trains its own model, and evaluates that one."""
        return ViewPool(pool, DittoView(self.local, self.strength))
