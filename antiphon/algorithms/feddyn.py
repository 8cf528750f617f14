"""FedDyn: clients and server remember gradients, so that local optima agree with the global one.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based
on Dynamic Regularization", ICLR 2021, arXiv:2111.04263: Algorithm 1.

| paper                  | here                                                                           |
| ---------------------- | ------------------------------------------------------------------------------ |
| θ^(t−1), h^(t−1)       | state.params, state.h                                                          |
| ∇L_k(θ_k^(t−1))        | the client's state "gradient/name"; 0 for a client that has none               |
| θ_k^t                  | the model after the local steps; θ^(t−1) − θ_k^t is the update                 |
| α                      | `alpha`; it travels as `proximal` of the local steps                           |
| m, P_t                 | `num_clients`, clients that answered                                           |

A client minimises L_k(θ) − ⟨∇L_k(θ_k^(t−1)), θ⟩ + α/2 ‖θ − θ^(t−1)‖² and keeps
∇L_k(θ_k^t) = ∇L_k(θ_k^(t−1)) − α (θ_k^t − θ^(t−1)), the condition of the minimum. The server keeps
h^t = h^(t−1) − α/m Σ_{k∈P_t} (θ_k^t − θ^(t−1)), the mean of what all clients keep, and continues from
θ^t = mean of θ_k^t over P_t − h^t / α.

Deviations.
- The minimum is approached by the steps of `local`. `local.clip_norm` limits the gradient with both terms.
- Parameters that never reach the server (personal layers) have no such memory: with it, a client at its
  minimum would stay there. The term α/2 ‖·‖² applies to them, too.
- A client that trained, but whose answer was lost, has changed its gradient nevertheless.
- The authors' code divides α by a client's share of the examples. Here, as in the paper, all have the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from antiphon.algorithms.fedavg import select
from antiphon.core import ALGORITHMS, Metrics, Pool, ServerState, Task, Tensors, Update
from antiphon.server.run_context import RunContext
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import Uniform
from antiphon.tasks.client_work import Answer
from antiphon.tasks.local_training import (
    LocalSteps,
    LocalTraining,
    Trained,
    as_part,
    part_of,
    plan_local_steps,
    training_work,
)

GRADIENT = "gradient"
SHARED = "shared"  # the key in a task's configuration: names of the parameters that the server has


def plan(task: Task, client: Any) -> LocalSteps:
    """Plan steps along ∇L_k(θ) − ∇L_k(θ_k^(t−1)) + α (θ − θ^(t−1)); the last term is the proximal one."""
    gradient = _gradient_of(task, client)
    return replace(plan_local_steps(task, client), correction={name: -g for name, g in gradient.items()})


@training_work("feddyn.train", plan=plan, answers="parameters")
def answer(task: Task, client: Any, trained: Trained) -> Answer:
    """Answer with θ^(t−1) − θ_k^t; store ∇L_k(θ_k^t)."""
    alpha = LocalTraining.from_task(task.config).proximal
    gradient = {name: g + alpha * trained.delta[name] for name, g in _gradient_of(task, client).items()}
    return Update(trained.delta, reports=(trained.report,)), as_part(gradient, GRADIENT)


def _gradient_of(task: Task, client: Any) -> Tensors:
    """Return ∇L_k(θ_k^(t−1)) of the shared parameters; 0 for those without one yet."""
    state, shared = part_of(client.state, GRADIENT), json.loads(str(task.config[SHARED]))
    return {name: state.get(name, torch.zeros_like(task.tensors[name])) for name in shared}


@dataclass(frozen=True)
class FedDynState(ServerState):
    """A server's state, and its memory of gradients h."""

    h: Tensors = field(default_factory=dict)


@ALGORITHMS.register
@dataclass(frozen=True)
class FedDyn:
    """Federated averaging with dynamic regularisation; every client has its own from round to round."""

    alpha: float = 0.1
    local: LocalTraining = LocalTraining()
    client_schedule: Schedule = Constant()
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay and never travel
    num_clients: int = 0  # m; 0: all clients of the run
    unbounded: ClassVar[str] = "its steps depend on the number of clients that answered"

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha must be above 0, not {self.alpha:g}: the server divides by it")
        if self.local.proximal:
            raise ValueError("FedDyn has the FedProx term, with the factor alpha: leave local.proximal at 0")

    def prepare(self, context: RunContext) -> FedDyn:
        return replace(self, num_clients=self.num_clients or len(context.clients))

    def init(self, params: Tensors) -> FedDynState:
        trained = select(params, self.trainable)
        return FedDynState(0, params, h={name: torch.zeros_like(p) for name, p in trained.items()})

    def round(self, state: FedDynState, cohort: Sequence[str], pool: Pool) -> tuple[FedDynState, Metrics]:
        if not self.num_clients:
            raise ValueError("FedDyn does not know the number of clients: call run_context.prepare first")
        scale = self.client_schedule(state.round)
        local = replace(self.local, proximal=self.alpha)
        shared = json.dumps(list(state.h), separators=(",", ":"))
        config = {**local.task_config(state, scale), SHARED: shared}
        task = Task("feddyn.train", select(state.params, self.trainable), config)
        update = pool.reduce(task, cohort, Uniform())
        share = len(update.reports) / self.num_clients  # |P_t| / m
        h = {name: h + self.alpha * share * update.mean[name] for name, h in state.h.items()}
        moved = {name: state.params[name] - update.mean[name] - h[name] / self.alpha for name in h}
        after = replace(state, round=state.round + 1, params={**state.params, **moved}, h=h)
        return after, {"client_lr": self.local.lr * scale}
