"""Central training, the reference of every table: all utterances on one client, one AdamW.

Seed models are trained with it too. It is an algorithm, so it has the checkpoints, resume, journal and
evaluation of a federated run. A "round" is `local.steps` steps (or epochs), and the optimiser's moments
travel with the parameters.
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
    """AdamW (Loshchilov and Hutter 2019) on one client, with moments that last from round to round."""

    local: LocalTraining = LocalTraining(lr=5e-4, steps=50)
    schedule: Schedule = Constant()
    weight_decay: float = 0.01  # of AdamW
    trainable: tuple[str, ...] = ("*",)  # patterns of parameter names; the others stay
    trains_on_server: ClassVar[bool] = True  # its client has no simulated faults

    def __post_init__(self) -> None:
        if not self.local.is_plain:
            raise ValueError("central training has an AdamW of its own: leave local.optimizer at sgd")
        if not self.local.is_exact:
            raise ValueError("central training has no small device: leave local.storage at exact")

    def check_run(self, run: Any) -> None:
        """Refuse a run with several clients."""
        if getattr(run.clients, "parts", 0) != 1:
            raise ValueError("central training has one client, clients must be iid, parts 1")

    def init(self, params: Tensors) -> ServerState:
        trained = select(params, self.trainable)
        first, second = ({name: torch.zeros_like(p) for name, p in trained.items()} for _ in range(2))
        return ServerState(round=0, params=params, opt={"step": 0, "first": first, "second": second})

    def round(self, state: ServerState, cohort: Sequence[str], pool: Pool) -> tuple[ServerState, Metrics]:
        if len(cohort) != 1:
            raise ValueError(f"central training has one client that holds everything, not {len(cohort)}")
        scale = self.schedule(state.round)
        trained = select(state.params, self.trainable)
        groups = {"params": trained, "first": state.opt["first"], "second": state.opt["second"]}
        config = self.local.task_config(state, scale, purpose="central")
        config |= {"weight_decay": self.weight_decay, "step": state.opt["step"]}
        tensors = {n: t for group, part in groups.items() for n, t in as_part(part, group).items()}
        update = pool.reduce(Task("central", tensors, config), cohort, Uniform())
        after = {group: part_of(update.mean, group) for group in groups}
        params = {**state.params, **after.pop("params")}
        opt = {"step": state.opt["step"] + int(update.reports[0].stats["num_steps"]), **after}
        metrics = {"client_lr": self.local.lr * scale}
        return replace(state, round=state.round + 1, params=params, opt=opt), metrics
