from __future__ import annotations

from dataclasses import replace

import torch
from world import SEED, World

from antiphon.algorithms.fedavg import fedavg
from antiphon.algorithms.rehearsal import SERVER_CLIENT, Rehearsed
from antiphon.core import Task
from antiphon.pools.local import LocalPool
from antiphon.tasks.local_training import LocalTraining

COHORT = ["speaker/s00", "speaker/s01"]


def test_a_rehearsed_round_is_the_round_and_then_the_server_s_own_steps(world: World) -> None:
    """DGA eq. 5: the rehearsal starts from the aggregate, on the server's data alone."""
    inner, rehearsal = fedavg(LocalTraining(batch_seconds=1.0)), LocalTraining(lr=0.02, steps=2)
    pool = LocalPool(world.worker(world.clients(), world.exact_runtime()))
    state = replace(inner.init(world.params(dtype=torch.float64)), seed=SEED)
    after, metrics = Rehearsed(inner, rehearsal).round(state, COHORT, pool)

    aggregate, _ = inner.round(state, COHORT, pool)
    config = rehearsal.task_config(state, purpose="rehearse")
    (update,) = pool.worker.run(Task("train", aggregate.params, config), [SERVER_CLIENT])
    for name, p in after.params.items():
        assert torch.equal(p, aggregate.params[name] - update.mean[name])
    assert metrics["rehearsal_loss"] == update.reports[0].stats["loss"]
    assert after.round == 1
