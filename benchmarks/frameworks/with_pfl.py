"""pfl-research: its FederatedAveraging on its SimulatedBackend, one process."""

from __future__ import annotations

import sys
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from workload import BATCH_SIZE, Gate, load


class Laps(TrainingProcessCallback):
    """Tells the gate that a round is over."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, **_: Any
    ) -> tuple[bool, Metrics]:
        self.gate.lap()
        return False, Metrics()


def main(folder: str, out: Path) -> None:
    workload = load(folder)
    module, gate = workload.model, Gate(workload, out)
    module.loss, module.metrics = module.forward, lambda *batch: {}  # nothing is evaluated here
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clients = [
        PyTorchTensorDataset([tensor[k] for tensor in workload.data], user_id=str(k))
        for k in range(workload.num_clients)
    ]
    drawn = chain.from_iterable(workload.cohorts)
    data = FederatedDataset(clients.__getitem__, lambda: next(drawn))
    rounds, cohort = len(workload.cohorts), len(workload.cohorts[0])
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=10**9, train_cohort_size=cohort, val_cohort_size=None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(BATCH_SIZE, local_num_epochs=workload.epochs, local_learning_rate=workload.lr),
        callbacks=[Laps(gate)],
    )
    gate.write(dict(module.named_parameters()), version=version("pfl"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
