"""Central training, the reference row of every table: all utterances in one place, one AdamW.

Seed models are trained with it too. It is written as an algorithm so that checkpoints, resume, the
journal and evaluation are those of a federated run: a "round" is `local.steps` steps (or epochs), and
the optimiser's moments travel with the parameters to the one client that holds everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from antiphon.algorithms.fedavg import select
from antiphon.core import ALGORITHMS, Metrics, Pool, ServerState, Task, Tensors
from antiphon.server.schedules import Constant, Schedule
from antiphon.server.weighting import Uniform
from antiphon.tasks.local_training import LocalTraining, as_part, part_of


@ALGORITHMS.register
@dataclass(frozen=True)
class Central:
    """AdamW (Loshchilov and Hutter 2019) on the one client of the cohort, moments kept between rounds."""

    local: LocalTraining = LocalTraining(lr=5e-4, steps=50)
    schedule: Schedule = Constant()
    weight_decay: float = 0.01
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay
    trains_on_server: ClassVar[bool] = True  # simulated faults of clients do not concern it

    def check_run(self, run: Any) -> None:
        """Refuse a run whose data are spread over several clients."""
        if getattr(run.clients, "parts", 0) != 1:
            raise ValueError("central training has one client, clients must be iid, parts 1")

    def init(self, params: Tensors) -> ServerState:
        trained = select(params, self.trainable)
        zeros = {name: torch.zeros_like(p) for name, p in trained.items()}
        moments = {"first": zeros, "second": {name: torch.zeros_like(p) for name, p in trained.items()}}
        return ServerState(round=0, params=params, opt={"step": 0, **moments})

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        if len(cohort) != 1:
            raise ValueError(f"central training has one client that holds everything, not {len(cohort)}")
        scale = self.schedule(state.round)
        trained = select(state.params, self.trainable)
        groups = {"params": trained, "first": state.opt["first"], "second": state.opt["second"]}
        config = {
            **self.local.task_config(state, scale, purpose="central"),
            "weight_decay": self.weight_decay,
            "step": state.opt["step"],
        }
        tensors = {n: t for group, part in groups.items() for n, t in as_part(part, group).items()}
        update = pool.reduce(Task("central", tensors, config), cohort, Uniform())
        back = {group: part_of(update.mean, group) for group in groups}
        steps = int(update.reports[0].stats["num_steps"])
        opt = {"step": state.opt["step"] + steps, "first": back["first"], "second": back["second"]}
        params = {**state.params, **back["params"]}
        return replace(state, round=state.round + 1, params=params, opt=opt), {
            "client_lr": self.local.lr * scale
        }
