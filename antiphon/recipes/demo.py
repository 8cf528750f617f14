"""The demo: a synthetic corpus, a seed model and three federated algorithms, in minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from antiphon.algorithms.fedavg import FedAvg, dga, fedavg, hierarchical
from antiphon.data.encoders import Moonshine
from antiphon.engine import Rounds
from antiphon.experiment.settings import Experiment, Run, Speakers
from antiphon.models.blstm import BlstmConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.noise import SpecAugment
from antiphon.recipes.single_algorithm import central
from antiphon.server.optimizers import Adam
from antiphon.server.schedules import Cosine
from antiphon.tasks.local_training import LocalTraining


def demo() -> Experiment:
    """FedAvg, hierarchical optimisation and DGA softmax side by side, small enough for a laptop."""
    if not Moonshine.is_installed():
        return demo_filterbank()
    return replace(
        demo_filterbank(),
        recipe="demo",
        frontend=Moonshine(),
        model=CtcConfig(BlstmConfig(dim=64, num_layers=2, stack=1)),
        augment=SpecAugment(num_time_masks=1, time_width=6, num_frequency_masks=0),
    )


def demo_filterbank() -> Experiment:
    """The demo on log-mel filterbanks, without a pretrained encoder."""
    local, server = LocalTraining(lr=0.3, epochs=2, batch_seconds=16.0), Adam(lr=5e-3, epsilon=1e-5)

    def run(algorithm: FedAvg) -> Run:
        algorithm = replace(algorithm, server_schedule=Cosine(24, final=0.05))
        return Run(algorithm, rounds=Rounds(total=24, cohort=10, valid_every=3))

    return Experiment(
        recipe="demo",
        model=CtcConfig(BlstmConfig(dim=64, num_layers=2, stack=4)),
        augment=SpecAugment(num_time_masks=1, time_width=15, num_frequency_masks=1, frequency_width=12),
        speakers=Speakers(seed_fraction=0.25),
        runs={
            "seed": central("seed", rounds=12, steps=40, lr=3e-3),
            "fedavg": run(fedavg(replace(local, lr=0.5))),
            "hierarchical": run(hierarchical(local, server)),
            "dga": run(dga(local, 0.5, server)),
        },
    )
