"""The demo: a corpus out of a synthesiser, a seed model, and three ways to federate, in minutes on two cores."""

from __future__ import annotations

from antiphon.algorithms.fedavg import dga, fedavg, hierarchical
from antiphon.data.synthesis import SpeakerGroup
from antiphon.engine import Rounds
from antiphon.local import LocalTraining
from antiphon.models.conformer import ConformerConfig
from antiphon.models.ctc import CtcConfig
from antiphon.models.specaugment import SpecAugment
from antiphon.recipes.experiment import Experiment, Run, Speakers
from antiphon.recipes.single import central
from antiphon.server_opt import Adam

SPLITS = {
    "pool": SpeakerGroup(24, noisy_fraction=0.25),
    "heldout": SpeakerGroup(4, noisy_fraction=0.25),
    "test": SpeakerGroup(8, noisy_fraction=0.25),
}
SENTENCES_PER_SPEAKER = 24


def demo() -> Experiment:
    """FedAvg, hierarchical optimisation and DGA softmax side by side, small enough for a laptop."""
    local, server = LocalTraining(lr=0.1, epochs=1, batch_seconds=16.0), Adam(lr=2e-3)
    rounds = Rounds(total=12, cohort=8, valid_every=2)
    return Experiment(
        recipe="demo",
        model=CtcConfig(ConformerConfig(dim=96, num_layers=3, kernel_size=9, stack=4)),
        augment=SpecAugment(num_time_masks=1, time_width=15, num_frequency_masks=1, frequency_width=12),
        speakers=Speakers(seed_fraction=0.3),
        runs={
            "seed": central("seed", rounds=10, steps=40, lr=2e-3),
            "fedavg": Run(fedavg(local), rounds=rounds),
            "hierarchical": Run(hierarchical(local, server), rounds=rounds),
            "dga": Run(dga(local, 1.0, server), rounds=rounds),
        },
    )
