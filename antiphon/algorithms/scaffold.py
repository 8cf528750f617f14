"""SCAFFOLD: control variates correct the drift of clients.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning", ICML 2020, arXiv:1910.06378: Algorithm 1, option II for c_i.

| paper        | here                                                                             |
| ------------ | -------------------------------------------------------------------------------- |
| x, c         | state.params, state.control; in a task "name" and "control/name"                 |
| c_i          | the client's state "control/name"; 0 for a client that has none                  |
| y_i          | the model after the local steps; x − y_i is the update's "name"                  |
| c_i⁺ − c_i   | the update's "control/name"                                                      |
| K, η_l       | the client's number of steps, `local.lr` times its schedule                      |
| η_g          | the learning rate of `server`                                                    |
| S, N         | clients that answered, `num_clients`                                             |

Deviations.
- Any server optimiser may take the step, and any weighting the mean of the updates.
- Clients take steps of plain SGD: only for these, (x − y_i) / (K η_l) is the mean of the gradients.
- `local.clip_norm` limits the corrected gradient. With it, c_i⁺ is the mean of limited gradients.
- Parameters without a control variate (a personal layer) are trained without a correction.
- A client that trained, but whose answer was lost, has changed its c_i nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from antiphon.algorithms.fedavg import select
from antiphon.core import ALGORITHMS, Metrics, Pool, ServerState, Task, Tensors, Update
from antiphon.server.optimizers import ServerOptimizer, Sgd
from antiphon.server.run_context import RunContext
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import Uniform, Weighting
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

CONTROL = "control"


def plan(task: Task, client: Any) -> LocalSteps:
    """Plan local steps whose gradients are corrected by c − c_i."""
    control = part_of(task.tensors, CONTROL)
    client_control = _control_of(client, control)
    correction = {name: c - client_control[name] for name, c in control.items()}
    return replace(plan_local_steps(task, client), correction=correction)


@training_work("scaffold.train", plan=plan, answers="everything")
def answer(task: Task, client: Any, trained: Trained) -> Answer:
    """Answer with x − y_i and c_i⁺ − c_i; store c_i⁺."""
    control = part_of(task.tensors, CONTROL)
    old = _control_of(client, control)
    distance = trained.report.stats["num_steps"] * LocalTraining.from_task(task.config).lr  # K η_l
    new = {name: old[name] - c + trained.delta[name] / distance for name, c in control.items()}
    moved = as_part({name: new[name] - old[name] for name in control}, CONTROL)
    return Update({**trained.delta, **moved}, reports=(trained.report,)), as_part(new, CONTROL)


def _control_of(client: Any, control: Tensors) -> Tensors:
    """Return c_i; 0 for parameters without one yet."""
    state = part_of(client.state, CONTROL)
    return {name: state[name] if name in state else torch.zeros_like(c) for name, c in control.items()}


@dataclass(frozen=True)
class ScaffoldState(ServerState):
    """A server's state, and its control variate c."""

    control: Tensors = field(default_factory=dict)


@ALGORITHMS.register
@dataclass(frozen=True)
class Scaffold:
    """Federated averaging with control variates; every client has its own from round to round."""

    local: LocalTraining = LocalTraining()
    client_schedule: Schedule = Constant()
    weighting: Weighting = Uniform()
    server: ServerOptimizer = Sgd()
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay and never travel
    num_clients: int = 0  # N; 0: all clients of the run
    unbounded: ClassVar[str] = "control variates of clients travel with updates and would need noise, too"

    def __post_init__(self) -> None:
        if not self.local.is_plain:
            raise ValueError(
                "SCAFFOLD's control variates are mean gradients of SGD steps: leave local.optimizer at sgd"
            )
        if not self.local.is_exact:
            raise ValueError(
                "SCAFFOLD's control variates are mean gradients, and a step that is stored in fewer bits "
                "is not its gradient: leave local.storage at exact"
            )

    def prepare(self, context: RunContext) -> Scaffold:
        return replace(self, num_clients=self.num_clients or len(context.clients))

    def init(self, params: Tensors) -> ScaffoldState:
        trained = select(params, self.trainable)
        return ScaffoldState(0, params, control={name: torch.zeros_like(p) for name, p in trained.items()})

    def round(self, state: ScaffoldState, cohort: Sequence[str], pool: Pool) -> tuple[ScaffoldState, Metrics]:
        if not self.num_clients:
            raise ValueError("SCAFFOLD does not know the number of clients: call run_context.prepare first")
        scale = self.client_schedule(state.round)
        tensors = {**select(state.params, self.trainable), **as_part(state.control, CONTROL)}
        task = Task("scaffold.train", tensors, self.local.task_config(state, scale))
        update = pool.reduce(task, cohort, self.weighting)
        delta = {name: update.mean[name] for name in state.control}
        params, opt = self.server(state.params, delta, state.opt)
        share = len(update.reports) / self.num_clients  # |S| / N
        moved = part_of(update.mean, CONTROL)
        control = {name: c + share * moved[name] for name, c in state.control.items()}
        metrics = {"client_lr": self.local.lr * scale, "server_lr": self.server.lr}
        return replace(state, round=state.round + 1, params=params, opt=opt, control=control), metrics
