"""The gap table: how much of what central training gains over a seed model does federated training gain?"""

from __future__ import annotations

from antiphon.algorithms.fedavg import dga, fedavg, hierarchical
from antiphon.algorithms.rehearsal import Rehearsed
from antiphon.data.frontends import OnnxEncoder
from antiphon.data.partition import Iid
from antiphon.engine import Rounds
from antiphon.local import LocalTraining
from antiphon.models.ctc import CtcConfig
from antiphon.models.specaugment import SpecAugment
from antiphon.recipes.experiment import Experiment, Run
from antiphon.recipes.single import central
from antiphon.server_opt import Adam


def librispeech() -> Experiment:
    """Seed, central, FedAvg, hierarchical, DGA; speakers against i.i.d. parts, on a frozen encoder."""
    local, server = LocalTraining(lr=0.05, epochs=1, batch_seconds=100.0), Adam(lr=3e-4)
    rounds = Rounds(total=60, cohort=10, valid_every=2)
    return Experiment(
        recipe="librispeech",
        frontend=OnnxEncoder("encoder_model.onnx"),
        model=CtcConfig(),
        augment=SpecAugment(num_time_masks=4, time_width=12, num_frequency_masks=2, frequency_width=40),
        runs={
            "seed": central("seed"),
            "central": central("both"),
            "fedavg": Run(fedavg(local), rounds=rounds),
            "hierarchical": Run(hierarchical(local, server), rounds=rounds),
            "hierarchical-iid": Run(hierarchical(local, server), clients=Iid(25), rounds=rounds),
            "dga": Run(dga(local, 1.0, server), rounds=rounds),
            "dga-rehearsal": Run(Rehearsed(dga(local, 1.0, server), LocalTraining(steps=10)), rounds=rounds),
        },
    )
